/*
 * Lua without files, clocks and unbounded work, for running descriptions. What happens depends on
 * the text and the defines alone. Work and memory are bounded, errors are reprinted in olmogen's
 * shape. library.lua says what remains of Lua's library.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "lang/lang.h"

enum {
	INSTRUCTIONS_MAX = 100000000,
	HOOK_EVERY = 1000,
	SECONDS_MAX = 5, /* of CPU time: stops what is not counted, as long lists of arguments */
	BYTES = 16,      /* allocated for the price of an instruction */
	COMPARED = 1024, /* bytes of a string that an instruction may compare for its own price */
	CALL = 30,       /* the price of a function of Lua's library */
	MEMORY_MAX = 64 << 20,
	LEVELS_MAX = 5,  /* call levels shown */
	TEXT_SHOWN = 40, /* bytes of a string shown in messages */
	READS_MAX = 20,  /* fields of arg told to the user */
};
/* The chunks' names: they mark the positions that Lua puts before its messages. */
#define CHUNK "\001"
#define LIBRARY "\002"

static struct {
	lua_State *L;
	uint32_t file;
	struct define *defs;
	uint32_t ndefs;
	size_t used, limit;    /* bytes */
	uint64_t instructions; /* and other work, in their number */
	uint64_t longest;      /* string */
	clock_t start;
	bool running;
	uint32_t level[LEVELS_MAX + 1]; /* lines of the call levels at an error, innermost first */
	uint32_t n;
	ARRAY(const char *) reads; /* fields of arg that the file looked for */
} box;

/* Notes the call levels of the description, while they still exist. */
static void
note_levels(lua_State *L)
{
	lua_Debug ar;
	box.n = 0;
	for (int level = 0; lua_getstack(L, level, &ar) && box.n < LEN(box.level); level++) {
		lua_getinfo(L, "Sl", &ar);
		if (ar.currentline > 0 && !strcmp(ar.source, "=" CHUNK))
			box.level[box.n++] = (uint32_t)ar.currentline;
	}
}

/* Line being executed by the description's innermost function, 0 if there is none. */
static uint32_t
current_line(lua_State *L)
{
	note_levels(L);
	return box.n ? box.level[0] : 0;
}

static bool
spent(uint64_t work)
{
	box.instructions += work;
	return box.instructions >= INSTRUCTIONS_MAX;
}

/* Ends the run with a message at the line being executed. */
static void
stop(lua_State *L, const char *message)
{
	lua_pushfstring(L, CHUNK ":%d: %s", (int)current_line(L), message);
	lua_error(L);
}

/* Work done inside C, in instructions. */
static void
count(lua_State *L, uint64_t work)
{
	if (spent(work))
		stop(
		    L, xprintf(
			   "the description did the work of more than %s instructions: is there an "
			   "endless loop?",
			   text_commas(INSTRUCTIONS_MAX)));
}

static void on_count(lua_State *L, lua_Debug *ar);

static void *
allocate(void *ud, void *p, size_t old, size_t new)
{
	(void)ud;
	if (!p) { /* old is a type's tag then */
		if (old == LUA_TSTRING && new > box.longest)
			box.longest = new;
		old = 0;
	}
	if (!new) {
		free(p);
		box.used -= old;
		return NULL;
	}
	if (new > old && box.used + (new - old) > box.limit) {
		/* the stack is gone when the error arrives; reading it here changes nothing in Lua
		 */
		if (box.L)
			note_levels(box.L);
		return NULL;
	}
	void *q = realloc(p, new);
	if (q)
		box.used += new - old;
	/* no error may leave here: the next instruction stops */
	if (box.running && new > old && spent((new - old) / BYTES))
		lua_sethook(box.L, on_count, LUA_MASKCOUNT, 1);
	return q;
}

static void
on_count(lua_State *L, lua_Debug *ar)
{
	(void)ar;
	/* any of them may have joined or compared the longest string */
	count(L, HOOK_EVERY * (1 + box.longest / COMPARED));
	if ((clock() - box.start) / CLOCKS_PER_SEC >= SECONDS_MAX)
		stop(L, xprintf("the description ran for more than %d seconds", SECONDS_MAX));
}

/* Where the description calls what is running now: the name of the function called. */
struct pos
sandbox_where(lua_State *L)
{
	return srcpos_call(box.file, current_line(L));
}

static const char *
describe_string(lua_State *L, int index)
{
	size_t n;
	const char *s = lua_tolstring(L, index, &n);
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

static const char *
describe_table(lua_State *L, int index)
{
	lua_Unsigned n = lua_rawlen(L, index);
	if (n)
		return xprintf("a list of %llu value%s", llu(n), n > 1 ? "s" : "");
	lua_pushnil(L);
	if (!lua_next(L, index))
		return "an empty table";
	lua_pop(L, 2);
	return "a plain table";
}

/* A value in words, for "got ...". */
const char *
sandbox_describe(lua_State *L, int index)
{
	const char *s;
	switch (lua_type(L, index)) {
	case LUA_TSTRING:
		return describe_string(L, index);
	case LUA_TNUMBER:
		s = xprintf("number %s", luaL_tolstring(L, index, NULL));
		lua_pop(L, 1);
		return strstr(s, "nan") ? "nan" : s;
	case LUA_TBOOLEAN:
		return lua_toboolean(L, index) ? "true" : "false";
	case LUA_TTABLE:
		return describe_table(L, lua_absindex(L, index));
	case LUA_TFUNCTION:
		return "a function";
	case LUA_TUSERDATA:
		luaL_getmetafield(L, index, "__name");
		s = xprintf("%s { ... }", lua_tostring(L, -1));
		lua_pop(L, 1);
		return s;
	}
	return "nil";
}

/* ---- what library.lua is given --------------------------------------------------------------- */

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

/* Calls the function that is its upvalue, and counts the work. */
static int
forward(lua_State *L)
{
	count(L, CALL + amount(L));
	lua_pushvalue(L, lua_upvalueindex(1));
	lua_insert(L, 1);
	lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
	count(L, amount(L));
	return lua_gettop(L);
}

/* A function whose work is counted; what is none stays as it is. */
static int
counted(lua_State *L)
{
	if (lua_isfunction(L, 1))
		lua_pushcclosure(L, forward, 1);
	return 1;
}

static int
work(lua_State *L)
{
	count(L, (uint64_t)lua_tonumber(L, 1));
	return 0;
}

/* Prints a line. */
static int
write_line(lua_State *L)
{
	count(L, CALL * amount(L));
	fprintf(stderr, "%s\n", lua_tostring(L, 1));
	return 0;
}

/* Numbers before strings. */
static int
before(lua_State *L)
{
	int a = lua_type(L, 1), b = lua_type(L, 2);
	lua_pushboolean(L, a != b ? a < b : lua_compare(L, 1, 2, LUA_OPLT));
	return 1;
}

/* The key of a table that a word is close to, as "; did you mean X?", or "". */
static int
closest(lua_State *L)
{
	ARRAY(const char *) key = { 0 };
	for (lua_pushnil(L); lua_next(L, 1) && key.n < 4096; lua_pop(L, 1))
		if (lua_type(L, -2) == LUA_TSTRING)
			*PUSH(key) = xstrdup(lua_tostring(L, -2));
	text_sort(key.a, key.n);
	const char *like = diag_closest(lua_tostring(L, 2), key.a, key.n);
	lua_pushstring(L, like ? xprintf("; did you mean %s?", like) : "");
	return 1;
}

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
		if (!strcmp(value, "true") || !strcmp(value, "false"))
			lua_pushboolean(L, *value == 't');
		else if (!lua_stringtonumber(L, value))
			lua_pushstring(L, value);
	}
	return 1; /* the last define of a name holds */
}

/* Makes what library.lua gives the table of globals. */
static int
set_up(lua_State *L)
{
	static const luaL_Reg lua[] = { { LUA_GNAME, luaopen_base },
		{ LUA_MATHLIBNAME, luaopen_math }, { LUA_STRLIBNAME, luaopen_string },
		{ LUA_TABLIBNAME, luaopen_table } };
	static const luaL_Reg sandbox[] = { { "arg", arg_read }, { "before", before },
		{ "closest", closest }, { "counted", counted }, { "work", work },
		{ "write", write_line }, { NULL, NULL } };
	const struct embedded *library = embedded_find("generator/lang/library.lua");

	for (size_t i = 0; i < LEN(lua); i++)
		luaL_requiref(L, lua[i].name, lua[i].func, 1);
	if (luaL_loadbufferx(L, (const char *)library->data, library->n, "=" LIBRARY, "t"))
		return lua_error(L);
	luaL_newlib(L, sandbox);
	lua_call(L, 1, 1);
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
	const char *like = diag_closest(d->name, box.reads.a, box.reads.n);
	diag_error((struct pos){ 0 }, "-D %s=%s is never used by %s%s", d->name, d->value,
	    diag_file_name(box.file), like ? xprintf("; did you mean %s?", like) : "");
	for (uint32_t i = 0; i < box.reads.n; i++)
		buf_printf(&b, "%sarg.%s", i ? ", " : "", box.reads.a[i]);
	if (box.reads.n)
		diag_help("the file reads %s", b.s);
}

/* ---- running and errors ---------------------------------------------------------------------- */

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
	const char *s =
	    lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "error in error handling";
	uint32_t line = box.n ? box.level[0] : 0, first = 0;
	struct pos pos = { .file = box.file };
	if (status == LUA_ERRMEM) {
		s = xprintf("the description needs more than %s of memory", text_bytes(MEMORY_MAX));
	} else if (strncmp(s, CHUNK ":", 2) == 0 || strncmp(s, LIBRARY ":", 2) == 0) {
		char *end;
		unsigned long there = strtoul(s + 2, &end, 10);
		line = *s == *CHUNK ? (uint32_t)there : line;
		s = strncmp(end, ": ", 2) == 0 ? end + 2 : end;
	}
	if (strstr(s, "stack overflow"))
		s = box.n ? "stack overflow: is there an endless recursion?"
			  : "the text is nested too deeply";
	if (line)
		pos = srcpos_token(box.file, line);
	if (line && strncmp(s, "unknown name '", 14) == 0)
		pos =
		    srcpos_name(box.file, line, xprintf("%.*s", (int)strcspn(s + 14, "'"), s + 14));
	diag_error(pos, "%s", status == LUA_ERRSYNTAX ? map_lines(s) : s);
	while (first < box.n && box.level[first] != line)
		first++;
	for (uint32_t i = first + 1; i < box.n; i++)
		if (i == 1 || box.level[i] != box.level[i - 1]) /* recursion is shown once */
			diag_note(srcpos_call(box.file, box.level[i]), "called from here");
}

/*
 * A Lua state for one file, whose defines are the fields of arg. The caller adds its constructors
 * to the globals. Then sandbox_run. Close it with lua_close.
 */
lua_State *
sandbox_open(uint32_t file, struct define *defs, uint32_t ndefs)
{
	memset(&box, 0, sizeof(box));
	box.file = file;
	box.defs = defs;
	box.ndefs = ndefs;
	box.limit = MEMORY_MAX;
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
 * Runs the file and gives the number of its results; one is left on the stack, more are not. After
 * an error, which is reported, -1.
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
		box.longest = 0; /* the text itself may hold long ones */
		box.running = true;
		lua_sethook(L, on_count, LUA_MASKCOUNT, HOOK_EVERY);
		status = lua_pcall(L, 0, LUA_MULTRET, base);
		lua_sethook(L, NULL, 0, 0);
		box.running = false;
	}
	/* the caller looks at the result outside of a protected call: nothing may fail there */
	box.limit = SIZE_MAX;
	if (status != LUA_OK) {
		report(L, status);
		return -1;
	}
	int results = lua_gettop(L) - base;
	if (results != 1)
		lua_settop(L, base); /* they may be many, and are all wrong */
	return results;
}
