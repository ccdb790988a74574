/*
 * A Lua file to typed objects. Every object of field.def is a constructor: a C function, so that
 * Lua keeps its caller's line. Values are stored as they are given; defaults and rules are check's.
 */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <lauxlib.h>
#include <lua.h>

#include "lang/lang.h"

enum {
	FILE_MAX = 4 << 20,
	OBJECTS_MAX = 100000, /* constructor calls: objects live outside Lua's memory limit */
	LIST_MAX = 1024,
};

static uint32_t constructed; /* objects of a file */

static struct object *
to_object(lua_State *L, int index)
{
	struct object **p = lua_type(L, index) == LUA_TUSERDATA ? lua_touserdata(L, index) : NULL;
	return p ? *p : NULL; /* constructors make all the userdata there is */
}

/* The object at index, if it is one that the field takes. */
static struct object *
fitting(lua_State *L, int index, const struct value *v)
{
	struct object *o = to_object(L, index);
	return o && spec_choice(fields[v->f].choices, objects[o->type].name) ? o : NULL;
}

/* An error about the value at index; what names it, when it isn't the field's own value. */
static bool
wrong(lua_State *L, int index, const struct value *v, const char *what)
{
	const struct object *o = to_object(L, index);
	const char *made = spec_choices(fields[v->f].choices, "", " { ... }");
	enum field_type type = fields[v->f].type;
	if (what)
		diag_error(v->pos, "%s, expected %s", what, made);
	else
		diag_error(v->pos, "%s: expected %s, got %s", spec_name(v->f), spec_type(v->f),
		    sandbox_describe(L, index));
	if (o)
		diag_note(o->pos, "this %s is made here", objects[o->type].name);
	if (lua_type(L, index) == LUA_TTABLE && (type == OBJ || type == LIST || type == LAYERS))
		diag_help("write the constructor before the brace: %s", made);
	return false;
}

static bool
get_number(lua_State *L, int index, double *x)
{
	if (lua_type(L, index) != LUA_TNUMBER)
		return false;
	*x = lua_tonumber(L, index) + 0.0; /* no negative zero: it doesn't survive printing */
	return isfinite(*x);
}

/* The numbers of a list, of a pair two; false after an error. */
static bool
get_numbers(lua_State *L, int index, struct value *v)
{
	bool pair = fields[v->f].type == PAIR;
	lua_Unsigned n = lua_rawlen(L, index), entries = 0;
	for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1))
		entries++;
	if (n > LIST_MAX || entries != n || (pair && n != 2))
		return wrong(L, index, v, NULL);
	v->nums = xalloc((n + 1) * sizeof(*v->nums));
	for (; v->nnums < n; v->nnums++) {
		lua_rawgeti(L, index, v->nnums + 1);
		int whole;
		lua_tointegerx(L, -1, &whole);
		bool ok = get_number(L, -1, &v->nums[v->nnums]) && (pair || whole);
		if (pair && !ok)
			return wrong(L, index, v, NULL);
		if (!ok) {
			diag_error(v->pos, "%s[%u]: expected an integer, got %s", spec_name(v->f),
			    v->nnums + 1, sandbox_describe(L, -1));
			return false;
		}
		lua_pop(L, 1);
	}
	return true;
}

static void
append(struct value *v, struct object *o, uint32_t room)
{
	if (!v->list)
		v->list = xalloc(room * sizeof(*v->list));
	v->list[v->n++] = o;
}

/* The n objects of the list at index, or those that the function there gives; false: an error. */
static bool
get_objects(lua_State *L, int index, struct value *v, uint32_t n)
{
	bool list = lua_type(L, index) == LUA_TTABLE;
	for (uint32_t i = 0; i < n; i++) {
		lua_pushvalue(L, index);
		lua_pushinteger(L, i + list);
		if (list)
			lua_rawget(L, index);
		else
			lua_call(L, 1, 1);
		struct object *o = fitting(L, -1, v);
		const char *got = o ? NULL : sandbox_describe(L, -1);
		if (!o)
			return wrong(L, -1, v,
			    list ? xprintf("%s[%u] is %s", spec_name(v->f), i + 1, got)
				 : xprintf("%s(%u) returned %s", fields[v->f].name, i, got));
		append(v, o, n);
		lua_settop(L, index);
	}
	return true;
}

/* The objects of a list; false after an error. What is right in it stays, for check to look at. */
static bool
get_list(lua_State *L, int index, struct value *v)
{
	lua_Unsigned n = lua_rawlen(L, index);
	bool named = false;
	for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1))
		named = named || lua_type(L, -2) != LUA_TNUMBER;
	if (named && !n)
		return wrong(L, index, v, NULL);
	if (!named && n <= LIST_MAX)
		return get_objects(L, index, v, (uint32_t)n);
	diag_error(v->pos, "%s %s", spec_name(v->f),
	    named ? "is a list, but has named entries too"
		  : xprintf("has more than %d entries", LIST_MAX));
	return false;
}

/* A field that holds no layers: the value at index is stored if it has the right type. */
static bool
get_value(lua_State *L, int index, struct value *v)
{
	const struct field_row *row = &fields[v->f];
	struct object *o;
	int isint, type = lua_type(L, index);
	size_t n;
	switch (row->type) {
	case INT:
		v->i = lua_tointegerx(L, index, &isint);
		return type == LUA_TNUMBER && isint;
	case BOOL:
		v->i = lua_toboolean(L, index);
		return type == LUA_TBOOLEAN;
	case NUM:
		if (type != LUA_TSTRING || !*row->choices)
			return get_number(L, index, &v->num);
		/* fall through */
	case STR:
	case ENUM:
		if (type != LUA_TSTRING)
			return false;
		v->str = xstrdup(lua_tolstring(L, index, &n));
		return strlen(v->str) == n;
	case OBJ:
		if ((o = fitting(L, index, v)))
			append(v, o, 1);
		return o != NULL;
	default:
		return false;
	}
}

/* One object a layer, if the number of layers is known; else what is there, not set. */
static bool
get_layers(lua_State *L, int index, const struct object *parent, struct value *v)
{
	const struct value *layers = spec_value(parent, F_transformer_n_layers);
	const struct field_row *row = &fields[F_transformer_n_layers];
	bool known = layers->set && layers->i >= row->lo && layers->i <= row->hi;
	uint32_t n = known ? (uint32_t)layers->i : 1;
	struct object *o = fitting(L, index, v);
	if (o) {
		for (uint32_t i = 0; i < n; i++)
			append(v, o, n);
		return known;
	}
	switch (lua_type(L, index)) {
	case LUA_TFUNCTION:
		if (known && lua_iscfunction(L, index))
			diag_error(v->pos,
			    "%s: expected %s, got a function that the file doesn't define",
			    spec_name(v->f), spec_type(v->f));
		return known && !lua_iscfunction(L, index) && get_objects(L, index, v, n);
	case LUA_TTABLE:
		if (!get_list(L, index, v))
			return false;
		if (known && v->n != n) {
			diag_error(v->pos, "%s lists %u layer%s, but %s", spec_name(v->f), v->n,
			    v->n == 1 ? "" : "s", spec_assigned(layers));
			spec_note(layers);
		}
		return known && v->n == n;
	}
	return wrong(L, index, v, NULL);
}

static void
get_field(lua_State *L, const struct object *o, struct value *v)
{
	const char *name = fields[v->f].name;
	enum field_type type = fields[v->f].type;
	struct pos first;
	lua_settop(L, 1);
	lua_pushstring(L, name);
	if (lua_rawget(L, 1) == LUA_TNIL)
		return;
	v->given = true;
	v->pos = srcpos_field(o->pos, name, &first);
	if (first.line) {
		diag_error(v->pos, "%s is set twice", spec_name(v->f));
		diag_note(first, "it is set here first");
	}
	if (type == LAYERS)
		v->set = get_layers(L, 2, o, v);
	else if (type == LIST && lua_type(L, 2) == LUA_TTABLE)
		v->set = get_list(L, 2, v);
	else if ((type == INTS || type == PAIR) && lua_type(L, 2) == LUA_TTABLE)
		v->set = get_numbers(L, 2, v);
	else
		v->set = get_value(L, 2, v) || wrong(L, 2, v, NULL);
}

/* The field of that name, NULL if there is none. */
static struct value *
find_field(const struct object *o, const char *name)
{
	for (struct value *v = o->v; v < o->v + o->n; v++)
		if (!strcmp(fields[v->f].name, name))
			return v;
	return NULL;
}

/* An error for a key that is no field. The field that was meant counts as given, not as missing. */
static void
unknown_field(const struct object *o, const char *key)
{
	const char *name[N_FIELDS];
	struct buf list = { 0 }, others = { 0 };
	for (uint32_t i = 0; i < o->n; i++) {
		name[i] = fields[o->v[i].f].name;
		buf_printf(&list, "%s%s", i ? ", " : "", name[i]);
	}
	const char *like = diag_closest(key, name, o->n);
	diag_error(srcpos_field(o->pos, key, NULL), "%s has no field '%s'%s", objects[o->type].name,
	    key, like ? xprintf("; did you mean %s?", like) : "");
	if (like) {
		find_field(o, like)->given = true;
		return;
	}
	for (uint32_t f = 0; f < N_FIELDS; f++)
		if (!strcmp(fields[f].name, key))
			buf_printf(
			    &others, "%s%s", others.n ? ", " : "", objects[fields[f].object].name);
	if (others.n)
		diag_help("there is a field of that name in %s", others.s);
	diag_help("its fields are %s", list.s);
}

/* Keys of the table at index 1 that are no fields, in the order of their bytes. */
static void
check_keys(lua_State *L, const struct object *o)
{
	ARRAY(const char *) unknown = { 0 };
	bool positional = false, odd = false;
	for (lua_pushnil(L); lua_next(L, 1); lua_pop(L, 1)) {
		int type = lua_type(L, -2);
		positional |= type == LUA_TNUMBER;
		odd |= type != LUA_TNUMBER && type != LUA_TSTRING;
		if (type == LUA_TSTRING && !find_field(o, lua_tostring(L, -2)))
			*PUSH(unknown) = xstrdup(lua_tostring(L, -2));
	}
	text_sort(unknown.a, unknown.n);
	for (uint32_t i = 0; i < unknown.n; i++)
		unknown_field(o, unknown.a[i]);
	if (positional)
		diag_error(o->pos, "%s takes no values without a name: write name = value",
		    objects[o->type].name);
	if (odd)
		diag_error(o->pos, "%s has a key that is neither a name nor a number",
		    objects[o->type].name);
}

/* A constructor: takes one table, gives an object, whatever is wrong with it. */
static int
construct(lua_State *L)
{
	enum object_type type = (enum object_type)lua_tointeger(L, lua_upvalueindex(1));
	if (constructed++ == OBJECTS_MAX)
		return luaL_error(
		    L, "more than %d objects are made: is there an endless loop?", OBJECTS_MAX);
	struct object *o = spec_new(type, sandbox_where(L));
	int n = lua_gettop(L);
	if (n != 1 || lua_type(L, 1) != LUA_TTABLE) {
		diag_error(o->pos, "%s takes one table: %s { ... }, got %s", objects[type].name,
		    objects[type].name,
		    n > 1   ? xprintf("%d values", n)
		    : n < 1 ? "nothing"
			    : sandbox_describe(L, 1));
		for (uint32_t i = 0; i < o->n; i++) /* nothing of it is missing then */
			o->v[i].given = true;
	} else {
		check_keys(L, o);
		for (int layers = 0; layers < 2; layers++) /* layers last: they need their number */
			for (uint32_t i = 0; i < o->n; i++)
				if ((fields[o->v[i].f].type == LAYERS) == layers)
					get_field(L, o, &o->v[i]);
	}
	*(struct object **)lua_newuserdatauv(L, sizeof(o), 0) = o;
	luaL_setmetatable(L, objects[type].name);
	return 1;
}

/* ---- the file and its result ----------------------------------------------------------------- */

/* Adds entry i of the list to those before it; false: it cannot be one. */
static bool
add_trainer(lua_State *L, int index, struct spec *out, uint32_t i)
{
	struct object *o = to_object(L, index);
	uint32_t k = 0;
	while (k < out->n && out->trainer[k] != o)
		k++;
	if (k < out->n) {
		diag_error(srcpos_return(out->file),
		    "entry %u of the list of trainers is entry %u again", i, k + 1);
		diag_note(o->pos, "the trainer is made here, once");
		diag_help("make each with a trainer { ... } and a name of its own");
		return false;
	}
	if (o && o->type == OBJ_trainer) {
		out->trainer[out->n++] = o;
		return true;
	}
	diag_error(srcpos_return(out->file), "entry %u of the list of trainers is %s", i,
	    sandbox_describe(L, index));
	diag_help("the file must return a trainer, or a list of trainers");
	return true;
}

/* Keys of the list at index that are no places in it: what they hold would be lost. */
static void
check_list(lua_State *L, int index, lua_Unsigned len, uint32_t file)
{
	struct pos pos = srcpos_return(file);
	const char *first = NULL;
	bool odd = false;

	for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
		if (lua_type(L, -2) != LUA_TSTRING) {
			lua_Integer i = lua_isinteger(L, -2) ? lua_tointeger(L, -2) : 0;
			odd |= i < 1 || (lua_Unsigned)i > len;
		} else if (!first || strcmp(lua_tostring(L, -2), first) < 0) {
			first = xstrdup(lua_tostring(L, -2));
		}
	}
	if (first)
		diag_error(srcpos_field(pos, first, NULL),
		    "the list of trainers has the name '%s' in it", first);
	else if (odd)
		diag_error(
		    pos, "the list of trainers has keys beside 1 .. %llu", (unsigned long long)len);
	if (first || odd)
		diag_help("return { trainer { ... }, trainer { ... } } has trainers alone");
}

static void
get_result(lua_State *L, int n, struct spec *out)
{
	int index = lua_gettop(L);
	const struct object *o = n == 1 ? to_object(L, index) : NULL;
	lua_Unsigned len = n == 1 && lua_type(L, index) == LUA_TTABLE ? lua_rawlen(L, index) : 0;
	out->trainer = xalloc(LIST_MAX * sizeof(*out->trainer));
	if (o && o->type == OBJ_trainer) {
		add_trainer(L, index, out, 1);
	} else if (len && len <= LIST_MAX) {
		bool more = true;
		check_list(L, index, len, out->file);
		for (uint32_t i = 1; i <= len && more; i++) {
			lua_rawgeti(L, index, i);
			more = add_trainer(L, index + 1, out, i);
			lua_settop(L, index);
		}
	} else {
		diag_error(srcpos_return(out->file),
		    "the file must return a trainer, or a list of trainers; it returns %s",
		    n == 0   ? "nothing"
		    : n == 1 ? sandbox_describe(L, index)
			     : xprintf("%d values", n));
		diag_help("end it with: return trainer { ... }");
	}
	for (uint32_t i = 0; i < out->n; i++)
		out->trainer[i] = spec_copy(out->trainer[i]);
}

static bool
is_description(const char *name)
{
	const char *end = strrchr(name, '.');
	return end && !strcmp(end, ".lua");
}

/* The path that is there and close to one that is not, folder by folder; NULL: none is. */
static const char *
closest_path(const char *path, bool folder)
{
	const char *slash = strrchr(path, '/'), *word = slash ? slash + 1 : path;
	const char *dir = slash ? xprintf("%.*s", (int)(slash - path), path) : ".";
	const char *name[LIST_MAX];
	struct dirent **entry;
	struct stat st;

	if (slash && slash > path && stat(dir, &st) != 0)
		dir = closest_path(dir, true);
	int n = dir ? scandir(*dir ? dir : "/", &entry, NULL, alphasort) : -1;
	uint32_t have = 0;
	for (int i = 0; i < n && have < LIST_MAX; i++)
		if (folder ? *entry[i]->d_name != '.' : is_description(entry[i]->d_name))
			name[have++] = entry[i]->d_name;
	if (!folder && !is_description(word))
		word = xprintf("%s.lua", word);
	const char *like = diag_closest(word, name, have);
	return !like ? NULL : slash ? xprintf("%s/%s", dir, like) : xstrdup(like);
}

/* The file's text, registered for messages; NULL after an error. */
static uint32_t
read_text(const char *path)
{
	struct stat st;
	size_t n = 0;
	const char *why = NULL;
	char *text = NULL;
	if (stat(path, &st) != 0) {
		why = strerror(errno);
		const char *like = errno == ENOENT ? closest_path(path, false) : NULL;
		if (like)
			why = xprintf("%s; did you mean %s?", why, like);
	} else if (S_ISDIR(st.st_mode))
		why = "it is a directory";
	else if (!S_ISREG(st.st_mode))
		why = "it is no regular file";
	else if (st.st_size > FILE_MAX)
		why = xprintf("it is larger than %s", text_bytes(FILE_MAX));
	else if (!(text = om_file_read(path, FILE_MAX, &n)))
		why = om_file_why();
	else if (n == 0)
		why = "it is empty";
	else if (*text == '\033')
		why = "it is compiled Lua, not text";
	uint32_t file = diag_file(path, why ? NULL : text, n);
	if (!why)
		return file;
	diag_error((struct pos){ .file = file }, "can't load the file: %s", why);
	return 0;
}

void
load(const char *path, struct define *defs, uint32_t ndefs, struct spec *out)
{
	memset(out, 0, sizeof(*out));
	for (uint32_t i = 0; i < ndefs; i++)
		defs[i].used = false;
	out->file = read_text(path);
	if (!out->file)
		return;
	constructed = 0;
	lua_State *L = sandbox_open(out->file, defs, ndefs);
	for (uint32_t t = OBJ_none + 1; t < N_OBJECTS; t++) {
		luaL_newmetatable(L, objects[t].name);
		lua_pushinteger(L, t);
		lua_pushcclosure(L, construct, 1);
		lua_setglobal(L, objects[t].name);
	}
	lua_settop(L, 0);
	int n = sandbox_run(L);
	if (n >= 0) {
		get_result(L, n, out);
		for (uint32_t i = 0; i < ndefs; i++)
			if (!defs[i].used)
				sandbox_unused(&defs[i]);
	}
	lua_close(L);
}
