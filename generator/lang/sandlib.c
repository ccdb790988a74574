/*
 * The part of Lua's library that a description sees. Nothing in it shows an address, a hash order
 * or a random number, and what works inside C, where no instructions are counted, tells its work:
 * by what it is given and gives. String patterns (they backtrack exponentially) and table.move (it
 * runs over any range) are left out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "lang/lang.h"

enum {
	SORT_MAX = 100, /* from there on Lua picks pivots by the clock */
	/* work, in instructions */
	CALL = 30,
	STEP = 12, /* of a loop over keys that compares some */
	DIGIT = 8,
};

/* They take no time worth telling, and where they are called matters. */
static const char *const base_names[] = { "assert", "error", "ipairs", "type", NULL };
static const char *const math_names[] = { "abs", "ceil", "cos", "exp", "floor", "fmod", "huge",
	"log", "max", "maxinteger", "min", "mininteger", "modf", "pi", "sin", "sqrt", "tan",
	"tointeger", "type", "ult", NULL };
static const char *const string_names[] = { "byte", "char", "len", "lower", "reverse", "sub",
	"upper", NULL };
static const char *const table_names[] = { "pack", "unpack", NULL };

/* Work on the values on the stack. */
static uint64_t
amount(lua_State *L)
{
	int n = lua_gettop(L);
	uint64_t work = (uint64_t)n;

	for (int i = 1; i <= n; i++)
		if (lua_type(L, i) == LUA_TSTRING)
			work += lua_rawlen(L, i) / 4;
	return work;
}

/* Arguments that print as an address print as their type. */
static void
hide_addresses(lua_State *L)
{
	for (int i = lua_gettop(L); i > 0; i--) {
		int type = lua_type(L, i);
		if (type < LUA_TTABLE)
			continue;
		if (type != LUA_TUSERDATA || luaL_getmetafield(L, i, "__name") == LUA_TNIL)
			lua_pushstring(L, lua_typename(L, type));
		lua_replace(L, i);
	}
}

static int
print(lua_State *L)
{
	sandbox_work(L, CALL * (1 + amount(L)));
	hide_addresses(L);
	for (int i = 1, n = lua_gettop(L); i <= n; i++) {
		fprintf(stderr, "%s%s", i > 1 ? "\t" : "", luaL_tolstring(L, i, NULL));
		lua_pop(L, 1);
	}
	fputc('\n', stderr);
	return 0;
}

static int
to_string(lua_State *L)
{
	luaL_checkany(L, 1);
	lua_settop(L, 1);
	sandbox_work(L, CALL);
	hide_addresses(L);
	luaL_tolstring(L, 1, NULL);
	return 1;
}

/* Calls the library's own function, kept as the first upvalue. */
static int
forward(lua_State *L)
{
	sandbox_work(L, CALL + amount(L));
	lua_pushvalue(L, lua_upvalueindex(1));
	lua_insert(L, 1);
	lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
	sandbox_work(L, amount(L));
	return lua_gettop(L);
}

static int
string_format(lua_State *L)
{
	for (const char *s = luaL_checkstring(L, 1); *s; s++) {
		if (*s != '%')
			continue;
		s += 1 + strspn(s + 1, "-+ #0123456789.");
		if (*s == 'p')
			return luaL_error(L, "string.format has no %%p in a description");
		if (!*s)
			break;
	}
	hide_addresses(L);
	forward(L);
	sandbox_work(L, lua_rawlen(L, -1) * DIGIT);
	return 1;
}

static int
string_rep(lua_State *L)
{
	size_t n, sep = 0;
	luaL_checklstring(L, 1, &n);
	luaL_checkinteger(L, 2);
	if (!lua_isnoneornil(L, 3))
		luaL_checklstring(L, 3, &sep);
	if (n + sep == 0) { /* Lua would still count to n */
		lua_pushliteral(L, "");
		return 1;
	}
	return forward(L);
}

static int
table_sort(lua_State *L)
{
	luaL_checktype(L, 1, LUA_TTABLE);
	if (lua_rawlen(L, 1) > SORT_MAX)
		return luaL_error(
		    L, "table.sort takes at most %d elements in a description", SORT_MAX);
	sandbox_work(L, lua_rawlen(L, 1) * STEP * 4);
	return forward(L);
}

/* What lies behind the place of an element moves. */
static void
shift(lua_State *L)
{
	lua_Unsigned n = lua_rawlen(L, 1);
	lua_Integer at = lua_tointeger(L, 2);

	if (at > 0 && (lua_Unsigned)at <= n)
		sandbox_work(L, (n - (lua_Unsigned)at) * 2);
}

static int
table_insert(lua_State *L)
{
	if (lua_gettop(L) == 3) /* with two, the second is the element */
		shift(L);
	return forward(L);
}

static int
table_remove(lua_State *L)
{
	shift(L);
	return forward(L);
}

static int
table_concat(lua_State *L)
{
	lua_Unsigned n = lua_rawlen(L, 1);
	lua_Integer first = luaL_optinteger(L, 3, 1);

	if (first <= 0)
		first = 1;
	if ((lua_Unsigned)first <= n)
		sandbox_work(L, (n - (lua_Unsigned)first) * STEP);
	return forward(L);
}

static void
check_listable(lua_State *L)
{
	luaL_checktype(L, 1, LUA_TTABLE);
	if (luaL_getmetafield(L, 1, "__index") != LUA_TNIL)
		luaL_error(L, "this table can't be listed: read its fields by name");
}

/* Numbers before strings. */
static int
key_before(lua_State *L)
{
	int a = lua_type(L, 1), b = lua_type(L, 2);
	lua_pushboolean(L, a != b ? a < b : lua_compare(L, 1, 2, LUA_OPLT));
	return 1;
}

static int
pairs_next(lua_State *L)
{
	lua_Integer i = lua_tointeger(L, lua_upvalueindex(3)) + 1;
	lua_pushinteger(L, i);
	lua_replace(L, lua_upvalueindex(3));
	if (lua_rawgeti(L, lua_upvalueindex(2), i) == LUA_TNIL)
		return 1;
	lua_pushvalue(L, -1);
	lua_rawget(L, lua_upvalueindex(1));
	return 2;
}

/*
 * pairs in the keys' order, numbers first: Lua's own order changes from run to run. Keys differ, so
 * that its sort gives one order whatever it picks as pivots.
 */
static int
pairs(lua_State *L)
{
	int depth = 0; /* of a tree of so many keys */
	lua_Integer n = 0;
	check_listable(L);
	lua_settop(L, 1);
	lua_newtable(L);
	for (lua_pushnil(L); lua_next(L, 1);) {
		int type = lua_type(L, -2);
		if (type != LUA_TNUMBER && type != LUA_TSTRING)
			return luaL_error(
			    L, "pairs takes keys that are numbers or strings in a description");
		depth += (++n >> depth) != 0;
		sandbox_work(L, (uint64_t)(STEP * (1 + depth)));
		lua_pop(L, 1);
		lua_pushvalue(L, -1);
		lua_rawseti(L, 2, n);
	}
	lua_getfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
	lua_getfield(L, 3, LUA_TABLIBNAME);
	lua_getfield(L, 4, "sort");
	lua_pushvalue(L, 2);
	lua_pushcfunction(L, key_before);
	lua_call(L, 2, 0);
	lua_settop(L, 2);
	lua_pushinteger(L, 0);
	lua_pushcclosure(L, pairs_next, 3);
	return 1;
}

/* next tells whether a table is empty; walking is for pairs, whose order is fixed. */
static int
next(lua_State *L)
{
	check_listable(L);
	if (!lua_isnoneornil(L, 2))
		return luaL_error(L, "next takes no key in a description: walk with pairs");
	lua_settop(L, 1);
	pairs(L);
	lua_call(L, 0, 2);
	return 2;
}

static int
no_member(lua_State *L)
{
	const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "?";
	return luaL_error(L, "%s.%s doesn't exist in a description%s",
	    lua_tostring(L, lua_upvalueindex(1)), key, sandbox_closest(L, 1, key));
}

static const struct {
	const char *name;
	lua_CFunction open;
	const char *const *kept; /* taken over as they are */
	luaL_Reg own[7];         /* functions that differ; Lua's own is their upvalue */
} libraries[] = {
	{ LUA_GNAME, luaopen_base, base_names,
	    { { "print", print }, { "tostring", to_string }, { "pairs", pairs }, { "next", next },
		{ "select", forward }, { "tonumber", forward } } },
	{ LUA_MATHLIBNAME, luaopen_math, math_names, { { NULL, NULL } } },
	{ LUA_TABLIBNAME, luaopen_table, table_names,
	    { { "sort", table_sort }, { "concat", table_concat }, { "insert", table_insert },
		{ "remove", table_remove } } },
	{ LUA_STRLIBNAME, luaopen_string, string_names,
	    { { "format", string_format }, { "rep", string_rep } } },
};

/* Fills the table of globals, on the stack's top, with the library. */
void
sandbox_library(lua_State *L)
{
	int globals = lua_gettop(L);
	for (size_t i = 0; i < LEN(libraries); i++) {
		bool base = libraries[i].open == luaopen_base;
		luaL_requiref(L, libraries[i].name, libraries[i].open, 0);
		if (base)
			lua_pushvalue(L, globals);
		else
			lua_newtable(L);
		for (const char *const *name = libraries[i].kept; *name; name++) {
			if (lua_getfield(L, -2, *name) == LUA_TFUNCTION && !base)
				lua_pushcclosure(L, forward, 1);
			lua_setfield(L, -2, *name);
		}
		for (const luaL_Reg *own = libraries[i].own; own->name; own++) {
			lua_getfield(L, -2, own->name);
			lua_pushcclosure(L, own->func, 1);
			lua_setfield(L, -2, own->name);
		}
		if (!base) {
			sandbox_reader(L, no_member, libraries[i].name);
			lua_setfield(L, globals, libraries[i].name);
		}
		lua_settop(L, globals);
	}
	/* methods of strings are those of the new table */
	lua_pushliteral(L, "");
	lua_getmetatable(L, -1);
	lua_getfield(L, globals, LUA_STRLIBNAME);
	lua_setfield(L, -2, "__index");
	lua_settop(L, globals);
}
