/*
 * Lua without files, clocks and unbounded work, for running descriptions. What happens depends on the text
 * and the defines alone: no addresses, no hash order, no random numbers can be seen. Instructions and
 * memory are bounded; library functions that may work for long inside C, where no limit can look, are left
 * out (string patterns backtrack exponentially, table.move runs over any range) or guarded. Errors are
 * reprinted in olmogen's shape.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "olmogen.h"

enum {
	INSTRUCTIONS_MAX = 100000000,
	HOOK_EVERY = 1000,
	SECONDS_MAX = 60, /* of CPU time: stops what the instruction count can't see */
	MEMORY_MAX = 64 << 20,
	SORT_MAX = 100,   /* from there on Lua picks pivots by the clock */
	LEVELS_MAX = 5,   /* call levels shown */
	TEXT_SHOWN = 40,  /* bytes of a string shown in messages */
	READS_MAX = 20,   /* fields of arg told to the user */
};
/* The chunk's name: it marks the positions that Lua puts before its messages. */
#define CHUNK "\001"

static struct {
	lua_State *L;
	uint32_t file;
	struct define *defs;
	uint32_t ndefs;
	size_t used;
	uint64_t instructions;
	clock_t start;
	uint32_t level[LEVELS_MAX + 1], n; /* lines of the call levels at an error, innermost first */
	struct {
		char **a;
		uint32_t n, cap;
	} reads; /* fields of arg that the file looked for */
} box;

/* Line being executed by the innermost Lua function from a call level on, 0 if there is none. */
static uint32_t
current_line(lua_State *L, int level)
{
	lua_Debug ar;
	for (; lua_getstack(L, level, &ar); level++) {
		lua_getinfo(L, "l", &ar);
		if (ar.currentline > 0)
			return (uint32_t)ar.currentline;
	}
	return 0;
}

/* Notes the call levels, while they still exist. */
static void
note_levels(lua_State *L)
{
	lua_Debug ar;
	box.n = 0;
	for (int level = 0; lua_getstack(L, level, &ar) && box.n < LEN(box.level); level++) {
		lua_getinfo(L, "l", &ar);
		if (ar.currentline > 0)
			box.level[box.n++] = (uint32_t)ar.currentline;
	}
}

static void *
allocate(void *ud, void *p, size_t old, size_t new)
{
	(void)ud;
	if (!p)
		old = 0; /* it is a type's tag then */
	if (!new) {
		free(p);
		box.used -= old;
		return NULL;
	}
	if (new > old && new - old > MEMORY_MAX - box.used) {
		/* the stack is gone when the error arrives; reading it here changes nothing in Lua */
		if (box.L)
			note_levels(box.L);
		return NULL;
	}
	void *q = realloc(p, new);
	if (q)
		box.used += new - old;
	return q;
}

static void
on_count(lua_State *L, lua_Debug *ar)
{
	const char *what = NULL;
	box.instructions += HOOK_EVERY;
	if (box.instructions >= INSTRUCTIONS_MAX)
		what = xprintf("the description ran for more than %s instructions: is there an endless "
		               "loop?", commas(INSTRUCTIONS_MAX));
	else if ((clock() - box.start) / CLOCKS_PER_SEC >= SECONDS_MAX)
		what = xprintf("the description ran for more than %d seconds", SECONDS_MAX);
	if (!what)
		return;
	lua_getinfo(L, "l", ar);
	lua_pushfstring(L, CHUNK ":%d: %s", ar->currentline, what);
	lua_error(L);
}

/* Where the innermost Lua function calls what is running now: the name of the function called. */
struct pos
sandbox_where(lua_State *L)
{
	return srcpos_call(box.file, current_line(L, 0));
}

static char *
describe_string(const char *s, size_t n)
{
	struct buf b = { 0 };
	size_t shown = n > TEXT_SHOWN ? TEXT_SHOWN : n;
	while (shown < n && shown && ((unsigned char)s[shown] & 0xc0) == 0x80)
		shown--; /* not inside a UTF-8 character */
	buf_puts(&b, "string \"");
	for (size_t i = 0; i < shown; i++)
		if (s[i])
			buf_add(&b, s + i, 1);
		else
			buf_puts(&b, "\\0");
	buf_puts(&b, shown < n ? "...\"" : "\"");
	return b.s;
}

static char *
describe_number(lua_State *L, int index)
{
	double x = lua_tonumber(L, index);
	if (x != x)
		return xstrdup("nan");
	lua_pushvalue(L, index); /* tolstring changes what it is given */
	char *s = xprintf("number %s", lua_tostring(L, -1));
	lua_pop(L, 1);
	return s;
}

static char *
describe_table(lua_State *L, int index)
{
	lua_Unsigned n = lua_rawlen(L, index);
	if (n)
		return xprintf("a list of %llu value%s", (unsigned long long)n, n > 1 ? "s" : "");
	lua_pushvalue(L, index);
	lua_pushnil(L);
	bool empty = !lua_next(L, -2);
	lua_pop(L, empty ? 1 : 3);
	return xstrdup(empty ? "an empty table" : "a plain table");
}

/* A value in words, for "got ...". */
char *
sandbox_describe(lua_State *L, int index)
{
	size_t n;
	const char *s;
	switch (lua_type(L, index)) {
	case LUA_TSTRING:
		s = lua_tolstring(L, index, &n);
		return describe_string(s, n);
	case LUA_TNUMBER:
		return describe_number(L, index);
	case LUA_TBOOLEAN:
		return xstrdup(lua_toboolean(L, index) ? "true" : "false");
	case LUA_TTABLE:
		return describe_table(L, index);
	case LUA_TFUNCTION:
		return xstrdup("a function");
	case LUA_TNIL:
	case LUA_TNONE:
		return xstrdup("nil");
	}
	luaL_getmetafield(L, index, "__name");
	char *name = xprintf("%s { ... }", lua_tostring(L, -1));
	lua_pop(L, 1);
	return name;
}

/* ---- library functions that differ from Lua's ------------------------------------------------------- */

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
	hide_addresses(L);
	luaL_tolstring(L, 1, NULL);
	return 1;
}

/* Calls the library's own function, kept as the first upvalue. */
static int
forward(lua_State *L)
{
	lua_pushvalue(L, lua_upvalueindex(1));
	lua_insert(L, 1);
	lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
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
	return forward(L);
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
		return luaL_error(L, "table.sort takes at most %d elements in a description", SORT_MAX);
	return forward(L);
}

static void
check_listable(lua_State *L)
{
	luaL_checktype(L, 1, LUA_TTABLE);
	if (luaL_getmetafield(L, 1, "__index") != LUA_TNIL)
		luaL_error(L, "this table can't be listed: read its fields by name");
}

static bool
key_before(lua_State *L, int a, int b)
{
	int x = lua_type(L, a), y = lua_type(L, b);
	return x != y ? x < y : lua_compare(L, a, b, LUA_OPLT);
}

/* Sinks the element at root of the heap of n keys in the table at index 2. */
static void
sift(lua_State *L, lua_Integer root, lua_Integer n)
{
	for (lua_Integer child; (child = root * 2) <= n; root = child) {
		lua_rawgeti(L, 2, root);
		lua_rawgeti(L, 2, child);
		if (child < n) {
			lua_rawgeti(L, 2, child + 1);
			if (key_before(L, -2, -1)) {
				lua_remove(L, -2);
				child++;
			} else {
				lua_pop(L, 1);
			}
		}
		if (!key_before(L, -2, -1)) {
			lua_pop(L, 2);
			return;
		}
		lua_rawseti(L, 2, root);
		lua_rawseti(L, 2, child);
	}
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

/* pairs in the keys' order, numbers first: Lua's own order changes from run to run. */
static int
pairs(lua_State *L)
{
	check_listable(L);
	lua_settop(L, 1);
	lua_newtable(L);
	lua_Integer n = 0;
	for (lua_pushnil(L); lua_next(L, 1);) {
		int type = lua_type(L, -2);
		if (type != LUA_TNUMBER && type != LUA_TSTRING)
			return luaL_error(L, "pairs takes keys that are numbers or strings in a description");
		lua_pop(L, 1);
		lua_pushvalue(L, -1);
		lua_rawseti(L, 2, ++n);
	}
	for (lua_Integer i = n / 2; i >= 1; i--)
		sift(L, i, n);
	for (lua_Integer i = n; i > 1; i--) {
		lua_rawgeti(L, 2, 1);
		lua_rawgeti(L, 2, i);
		lua_rawseti(L, 2, 1);
		lua_rawseti(L, 2, i);
		sift(L, 1, i - 1);
	}
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

/* ---- names ------------------------------------------------------------------------------------------ */

static int
arg_read(lua_State *L)
{
	const char *name = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
	uint32_t r = 0;
	while (r < box.reads.n && strcmp(box.reads.a[r], name) != 0)
		r++;
	if (r == box.reads.n && r < READS_MAX)
		*PUSH(box.reads) = xstrdup(name);
	lua_pushnil(L);
	for (uint32_t i = 0; i < box.ndefs; i++) {
		const char *value = box.defs[i].value;
		if (strcmp(box.defs[i].name, name) != 0)
			continue;
		box.defs[i].used = true;
		if (!value || strcmp(value, "true") == 0)
			lua_pushboolean(L, true);
		else if (strcmp(value, "false") == 0)
			lua_pushboolean(L, false);
		else if (!lua_stringtonumber(L, value))
			lua_pushstring(L, value);
	}
	return 1; /* the last define of a name holds */
}

static const char *const base_names[] = { "assert", "error", "ipairs", "select", "tonumber", "type",
	NULL };
static const char *const math_names[] = { "abs", "ceil", "cos", "exp", "floor", "fmod", "huge", "log",
	"max", "maxinteger", "min", "mininteger", "modf", "pi", "sin", "sqrt", "tan", "tointeger", "type",
	"ult", NULL };
static const char *const string_names[] = { "byte", "char", "len", "lower", "reverse", "sub", "upper",
	NULL };
static const char *const table_names[] = { "concat", "insert", "pack", "remove", "unpack", NULL };

/* What Lua has and a description hasn't. */
static const char *const absent[] = { "io", "os", "debug", "package", "coroutine", "utf8", "load",
	"loadfile", "loadstring", "dofile", "require", "pcall", "xpcall", "setmetatable", "getmetatable",
	"rawget", "rawset", "rawequal", "rawlen", "collectgarbage", "warn", "_G", "_VERSION" };

static int
no_member(lua_State *L)
{
	const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "?";
	return luaL_error(L, "%s.%s doesn't exist in a description", lua_tostring(L, lua_upvalueindex(1)),
	    key);
}

static int
no_name(lua_State *L)
{
	if (lua_type(L, 2) != LUA_TSTRING)
		return 0;
	const char *name = lua_tostring(L, 2);
	for (size_t i = 0; i < LEN(absent); i++)
		if (strcmp(absent[i], name) == 0)
			return luaL_error(L, "%s doesn't exist in a description", name);
	const char *like = diag_closest(name, object_names + 1, N_OBJECTS - 1);
	if (like)
		return luaL_error(L, "unknown name '%s'; did you mean %s?", name, like);
	return luaL_error(L, "unknown name '%s'", name);
}

/* A table on the stack's top gets a metatable with one reader. */
static void
set_reader(lua_State *L, lua_CFunction reader, const char *name)
{
	lua_newtable(L);
	lua_pushstring(L, name);
	lua_pushcclosure(L, reader, 1);
	lua_setfield(L, -2, "__index");
	lua_setmetatable(L, -2);
}

/* Moves the functions named from the table on the top into a new table, which takes its place. */
static void
keep(lua_State *L, const char *const *names)
{
	lua_newtable(L);
	for (; *names; names++) {
		lua_getfield(L, -2, *names);
		lua_setfield(L, -2, *names);
	}
}

/* table[name] = own, which finds the library's function in the table under it. */
static void
replace(lua_State *L, const char *name, lua_CFunction own)
{
	lua_getfield(L, -2, name);
	lua_pushcclosure(L, own, 1);
	lua_setfield(L, -2, name);
}

static int
set_up(lua_State *L)
{
	luaL_requiref(L, LUA_GNAME, luaopen_base, 0);
	keep(L, base_names);
	replace(L, "print", print);
	replace(L, "tostring", to_string);
	replace(L, "pairs", pairs);
	replace(L, "next", next);

	luaL_requiref(L, LUA_MATHLIBNAME, luaopen_math, 0);
	keep(L, math_names);
	set_reader(L, no_member, "math");
	lua_setfield(L, 2, "math");
	lua_settop(L, 2);

	luaL_requiref(L, LUA_TABLIBNAME, luaopen_table, 0);
	keep(L, table_names);
	replace(L, "sort", table_sort);
	set_reader(L, no_member, "table");
	lua_setfield(L, 2, "table");
	lua_settop(L, 2);

	luaL_requiref(L, LUA_STRLIBNAME, luaopen_string, 0);
	keep(L, string_names);
	replace(L, "format", string_format);
	replace(L, "rep", string_rep);
	set_reader(L, no_member, "string");
	lua_pushliteral(L, "");
	lua_getmetatable(L, -1); /* methods of strings are those of the new table */
	lua_pushvalue(L, -3);
	lua_setfield(L, -2, "__index");
	lua_pop(L, 2);
	lua_setfield(L, 2, "string");
	lua_settop(L, 2);

	lua_newtable(L);
	set_reader(L, arg_read, "arg");
	lua_setfield(L, 2, "arg");
	set_reader(L, no_name, "");
	lua_rawseti(L, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
	return 0;
}

/*
 * Reports a define that the file never read, with those it does read. The file must have run.
 */
void
sandbox_unused(const struct define *d)
{
	struct buf b = { 0 };
	diag_error((struct pos){ 0 }, "-D %s%s%s is never used by %s", d->name, d->value ? "=" : "",
	    d->value ? d->value : "", diag_file_name(box.file));
	for (uint32_t i = 0; i < box.reads.n; i++)
		buf_printf(&b, "%sarg.%s", i ? ", " : "", box.reads.a[i]);
	if (box.reads.n)
		diag_help("the file reads %s", b.s);
}

/* ---- running and errors ----------------------------------------------------------------------------- */

static int
on_error(lua_State *L)
{
	note_levels(L);
	if (lua_type(L, 1) == LUA_TNUMBER)
		lua_tostring(L, 1);
	if (lua_type(L, 1) != LUA_TSTRING)
		lua_pushfstring(L, "error called with %s", sandbox_describe(L, 1));
	return 1;
}

/* "at line 12" of a syntax error counts tokens: turned into the file's line. */
static const char *
map_lines(const char *s)
{
	struct buf b = { 0 };
	buf_puts(&b, "");
	while (*s) {
		if (strncmp(s, " line ", 6) != 0 || s[6] < '0' || s[6] > '9') {
			buf_add(&b, s++, 1);
			continue;
		}
		char *end;
		unsigned long line = strtoul(s + 6, &end, 10);
		buf_printf(&b, " line %u", srcpos_token(box.file, (uint32_t)line).line);
		s = end;
	}
	return b.s;
}

/* Lua's message in olmogen's shape: its position, the text, the call levels. */
static void
report(lua_State *L, int status)
{
	const char *s = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "error in error handling";
	uint32_t line = box.n ? box.level[0] : 0, first = 0;
	struct pos pos = { .file = box.file };
	if (status == LUA_ERRMEM) {
		s = xprintf("the description needs more than %s of memory", human_bytes(MEMORY_MAX));
	} else if (strncmp(s, CHUNK ":", 2) == 0) {
		char *end;
		line = (uint32_t)strtoul(s + 2, &end, 10);
		s = strncmp(end, ": ", 2) == 0 ? end + 2 : end;
	}
	if (strstr(s, "stack overflow"))
		s = box.n ? "stack overflow: is there an endless recursion?" : "the text is nested too deeply";
	if (line)
		pos = srcpos_token(box.file, line);
	if (line && strncmp(s, "unknown name '", 14) == 0)
		pos = srcpos_name(box.file, line, xprintf("%.*s", (int)strcspn(s + 14, "'"), s + 14));
	diag_error(pos, "%s", status == LUA_ERRSYNTAX ? map_lines(s) : s);
	while (first < box.n && box.level[first] != line)
		first++;
	for (uint32_t i = first + 1; i < box.n; i++)
		if (i == 1 || box.level[i] != box.level[i - 1]) /* recursion is shown once */
			diag_note(srcpos_call(box.file, box.level[i]), "called from here");
}

/*
 * A Lua state for one file, whose defines are the fields of arg. Constructors are added by the caller to
 * the table of globals; then sandbox_run. Close it with lua_close.
 */
lua_State *
sandbox_open(uint32_t file, struct define *defs, uint32_t ndefs)
{
	memset(&box, 0, sizeof(box));
	box.file = file;
	box.defs = defs;
	box.ndefs = ndefs;
	lua_State *L = lua_newstate(allocate, NULL);
	if (!L)
		internal("no Lua state");
	box.L = L;
	lua_pushcfunction(L, set_up);
	if (lua_pcall(L, 0, 0, 0) != LUA_OK)
		internal("sandbox: %s", lua_tostring(L, -1));
	return L;
}

/*
 * Runs the file. Its results are left on the stack and their number is given; after an error, which is
 * reported, -1.
 */
int
sandbox_run(lua_State *L)
{
	size_t n;
	char *text = srcpos_split(box.file, &n);
	int base = lua_gettop(L) + 1;
	lua_pushcfunction(L, on_error);
	int status = luaL_loadbufferx(L, text, n, "=" CHUNK, "t");
	if (status == LUA_OK) {
		box.start = clock();
		lua_sethook(L, on_count, LUA_MASKCOUNT, HOOK_EVERY);
		status = lua_pcall(L, 0, LUA_MULTRET, base);
		lua_sethook(L, NULL, 0, 0);
	}
	if (status != LUA_OK) {
		report(L, status);
		return -1;
	}
	return lua_gettop(L) - base;
}
