/*
 * The front end: positions, the split text, resolved.lua's round trip, shared objects, and mutated
 * files. Under sanitizers.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>

#include "plan/plan.h"

#include "check.h"

enum { MUTATIONS = 4000, RANDOM_SPECS = 200 };

static char path_a[] = "/tmp/olmogen-lang-XXXXXX", path_b[] = "/tmp/olmogen-lang-XXXXXX";

static uint64_t random_state = 1;

static uint64_t
next_random(void)
{
	uint64_t z = random_state += 0x9e3779b97f4a7c15;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

static void
write_file(const char *path, const char *text, size_t n)
{
	FILE *f = fopen(path, "wb");
	if (!f || fwrite(text, 1, n, f) != n || fclose(f) != 0) {
		perror(path);
		exit(1);
	}
}

static struct spec
load_text(const char *path, const char *text)
{
	struct spec s;
	write_file(path, text, strlen(text));
	load(path, NULL, 0, &s);
	return s;
}

/* ---- positions ---- */

static bool
at(struct pos p, uint32_t line, uint32_t col, uint32_t len)
{
	if (p.line == line && p.col == col && p.len == len)
		return true;
	printf("  at %u:%u, %u bytes; expected %u:%u, %u bytes\n", p.line, p.col, p.len, line, col,
	    len);
	return false;
}

/* Line of the split text that starts with a word, the k-th such line. */
static uint32_t
split_line(uint32_t file, const char *word, int k)
{
	size_t n;
	const char *s = srcpos_split(file, &n);
	for (uint32_t line = 1; s; line++) {
		if (strncmp(s, word, strlen(word)) == 0 && k-- == 0)
			return line;
		s = strchr(s, '\n');
		s = s ? s + 1 : NULL;
	}
	return 0;
}

static uint32_t
source(const char *text)
{
	return diag_file("text.lua", xstrdup(text), strlen(text));
}

static void
test_positions(void)
{
	uint32_t f = source(
	    "#!/usr/bin/env lua\n"
	    "-- moe { top_k = 1 }\n"
	    "local s = \"moe { top_k = 2 \\\" }\" --[[ moe {\n top_k = 3 ]] local t = [==[ moe {\n"
	    " top_k ]] ]=] = 4 } ]==]\n"
	    "return a.b.moe\n"
	    "\t( { -- top_k = 5\n"
	    "\t  x = { top_k = 6 }, [\"hidden\"] = 7, f = function() top_k = 8 if top_k then end "
	    "end,\n"
	    "\t  ['top_k'] = 9; g(top_k), top_k == 10, top_k = \\z\n"
	    "} ) moe { hidden = 1 }\n");
	struct pos call = srcpos_call(f, split_line(f, "(", 0));
	struct pos first, second;
	CHECK(at(call, 6, 12, 3));
	CHECK(at(srcpos_field(call, "hidden", &first), 8, 23, 10));
	CHECK(first.line == 0);
	CHECK(at(srcpos_field(call, "top_k", &first), 9, 42, 5));
	CHECK(at(first, 9, 4, 9));
	CHECK(at(srcpos_field(call, "absent", NULL), 6, 12, 3));
	second = srcpos_call(f, split_line(f, "moe", 1));
	CHECK(at(second, 10, 5, 3));
	CHECK(at(srcpos_field(second, "hidden", NULL), 10, 11, 6));
	CHECK(at(srcpos_token(f, split_line(f, "[==[", 0)), 4, 25, 35));
	CHECK(at(srcpos_token(f, split_line(f, "[==[", 0) + 1), 4, 25, 35));
	CHECK(at(srcpos_name(f, split_line(f, "return", 0), "a"), 6, 8, 1));
	CHECK(at(srcpos_return(f), 6, 1, 6));

	f = source("a.b { x = 1 }\r\nc\r\n  {\r\n y\t= 2 }");
	call = srcpos_call(f, split_line(f, "{", 1));
	CHECK(at(call, 2, 1, 1));
	CHECK(at(srcpos_field(call, "y", NULL), 4, 2, 1));
	call = srcpos_token(f, split_line(f, "a", 0));
	CHECK(at(srcpos_field(call, "x", NULL), 1, 7, 1));
	CHECK(at(srcpos_token(f, 1000), 4, 8, 1));

	f = source("");
	CHECK(at(srcpos_token(f, 1), 0, 0, 0));
	CHECK(at(srcpos_call(f, 1), 0, 0, 0));
	CHECK(at(srcpos_return(f), 0, 0, 0));
}

/* Whether Lua takes a text, and what it gives when run (only for texts that end). */
static char *
run_lua(const char *text, size_t n, bool run)
{
	lua_State *L = luaL_newstate();
	char *result = NULL;
	if (luaL_loadbufferx(L, text, n, "=x", "t") == LUA_OK &&
	    (!run || lua_pcall(L, 0, 1, 0) == LUA_OK))
		result = xstrdup(run ? luaL_tolstring(L, -1, NULL) : "");
	lua_close(L);
	return result;
}

static void
test_split(void)
{
	static const char *const same[] = {
		"return 1 ..2",
		"return 0x1p-4 + .5e1 + 3. + 0xA.8 + 1e+2",
		"return 'a\\z   \n  b' .. \"c\\\nd\" .. [[\n\ne]] .. [=[]]]=]",
		"local a <const> = 5 // 2 ~ 1 return a << 2 >> 1 & 7 | 8",
		"goto done do ::skip:: end ::done:: return -2 ^ 2",
		"return --[==[ x ]] ]==] 7 -- end",
		"return '\\x41\\u{42}\\067\\'\"'",
		"local t = {[1]=2,[ [[k]] ]=3} return t[1]+t.k --",
		"return 7 --[==[ ]==]",
		"return #'abc' ~= 3, 1",
		"local f = function(...) return ... end return f 'x' .. f[[y]] .. (f)'z'",
		"return 'a\r\nb'==[[a\r\nb]] and 1 or 2",
	};
	for (size_t i = 0; i < LEN(same); i++) {
		size_t n;
		uint32_t file = source(same[i]);
		char *split = srcpos_split(file, &n), *a = run_lua(same[i], strlen(same[i]), true);
		char *b = run_lua(split, n, true);
		CHECK((!a && !b) || (a && b && strcmp(a, b) == 0));
	}
}

/* ---- resolved.lua ---- */

static bool
line_has(const char *text, uint32_t line, const char *word)
{
	for (uint32_t i = 1; i < line && text; i++) {
		text = strchr(text, '\n');
		text = text ? text + 1 : NULL;
	}
	const char *found = text ? strstr(text, word) : NULL;
	return found && found < text + strcspn(text, "\n");
}

static bool
lines_right(const struct object *o, const char *text)
{
	for (const struct value *v = o->v; v < o->v + o->n; v++) {
		if (v->set && !line_has(text, v->line->number, fields[v->f].name)) {
			printf("  %s is not on line %u\n", spec_name(v->f), v->line->number);
			return false;
		}
		for (uint32_t i = 0; i < v->n; i++)
			if (!lines_right(v->list[i], text))
				return false;
	}
	return true;
}

/* The same lines of the same description are behind the values of two equal objects. */
static bool
same_origins(const struct object *a, const struct object *b)
{
	for (uint32_t k = 0; k < a->n; k++) {
		const struct value *x = &a->v[k], *y = &b->v[k];
		if (x->set && (x->line->number != y->line->number ||
				  strcmp(x->line->origin, y->line->origin)))
			return false;
		for (uint32_t i = 0; i < x->n; i++)
			if (!same_origins(x->list[i], y->list[i]))
				return false;
	}
	return true;
}

static bool
round_trip(const char *text)
{
	struct spec a = load_text(path_a, text);
	struct buf first = { 0 }, second = { 0 };
	if (a.n != 1)
		return false;
	check(a.trainer[0], targets, NULL);
	if (diag_flush())
		return false;
	spec_print(a.trainer[0], true, &first);
	if (!lines_right(a.trainer[0], first.s))
		return false;
	struct spec b = load_text(path_b, first.s);
	if (b.n != 1)
		return false;
	check(b.trainer[0], targets, NULL);
	if (diag_flush() || !spec_equal(a.trainer[0], b.trainer[0]))
		return false;
	spec_print(b.trainer[0], true, &second);
	if (!same_origins(a.trainer[0], b.trainer[0]))
		return false;
	for (const char *s = first.s; *s; s += strcspn(s, "\n"), s += *s == '\n')
		if (strcspn(s, "\n") > 100)
			printf("  long line: %.60s...\n", s);
	return first.n == second.n && memcmp(first.s, second.s, first.n) == 0;
}

/* A whole description around its feed_forward and further fields of the trainer. */
static const char *
description(int layers, const char *feed_forward, const char *more)
{
	return xprintf(
	    "return trainer {\n name = 'test', model = transformer { vocab_size = 64, d_model = "
	    "16,\n"
	    "  n_layers = %d, sequence_length = 8, attention = attention { n_heads = 2 },\n"
	    "  feed_forward = %s },\n batch = batch { micro = 1, global = 8 },\n %s }\n",
	    layers, feed_forward, more);
}

static void
test_round_trips(void)
{
	const char *moe = "moe { num_experts = 4, top_k = 2, hidden_size = 8 }";
	CHECK(round_trip(description(2, moe, "")));
	CHECK(round_trip(description(1, "{ mlp { hidden_size = 3 } }", "device_memory = 1.5")));
	CHECK(round_trip(description(
	    3, xprintf("{ mlp { hidden_size = 3 }, %s, mlp { hidden_size = 3 } }", moe), "")));
	CHECK(round_trip(description(9,
	    "function(l) return l % 3 == 0 and mlp { hidden_size = l + 1 } or "
	    "moe { num_experts = 8, top_k = 1, hidden_size = 4, "
	    "router = router { z_loss = l / 7 } } end",
	    "")));
	CHECK(
	    round_trip(description(26, "function(l) return mlp { hidden_size = l + 1 } end", "")));
	CHECK(
	    round_trip(description(27, "function(l) return mlp { hidden_size = l + 1 } end", "")));
	CHECK(round_trip(
	    description(1024, "function(l) return mlp { hidden_size = l + 1 } end", "")));
	CHECK(round_trip(
	    description(1024, "function(l) return mlp { hidden_size = l // 900 + 1 } end", "")));
	CHECK(round_trip(description(2, moe,
	    "precision = precision { weights = 'fp64' },\n"
	    "optimizer = adamw { groups = { group { match = 'a\"\\\\\\n\\r\\1é*', lr_scale = 0.1 "
	    "},\n"
	    "group { match = '*', weight_decay = 0 } }, betas = { 0, 0.1 } }")));
	CHECK(round_trip(description(2, moe,
	    "target = 'cuda:sm_90a', parallel = parallel { data = 4, expert = 2 },\n"
	    "optimizer = adamw { eps = -0.0 + 1e-20, weight_decay = -0.0 }")));
	for (int i = 0; i < RANDOM_SPECS; i++) {
		double x = (double)(next_random() >> 11) / 9007199254740992.0 + 1e-9;
		double y = (double)(next_random() >> 11) / 9007199254740992.0 * 0.9999;
		int exponent = (int)(next_random() % 9);
		CHECK(round_trip(description(1 + i % 5, moe,
		    xprintf("optimizer = adamw { eps = %.17ge-%d, "
			    "betas = { %.17g, %.9g }, weight_decay = %.3g }",
			x, exponent, y, y, x * 10))));
	}
}

/* ---- what load and check give ---- */

static void
test_values(void)
{
	/* one attention in two trainers: what is derived must not leak from one to the other */
	struct spec s = load_text(path_a,
	    "local a, list = attention { n_heads = 4 }, {}\n"
	    "for i, d in ipairs { 32, 64 } do list[i] = trainer { name = 'n' .. i, model = "
	    "transformer {\n"
	    " vocab_size = 8, d_model = d, n_layers = 2, sequence_length = 4, attention = a,\n"
	    " feed_forward = mlp { hidden_size = 2.0 } }, batch = batch { micro = 1, global = 1 } "
	    "} end\n"
	    "return list\n");
	CHECK(s.n == 2);
	for (uint32_t i = 0; i < s.n; i++) {
		check(s.trainer[i], targets, i ? "cuda:sm_90a" : NULL);
		struct object *model = spec_obj(s.trainer[i], F_trainer_model);
		struct object *a = spec_value(model, F_transformer_attention)->list[0];
		CHECK(spec_int(a, F_attention_head_dim) == (i ? 16 : 8));
		CHECK(spec_int(a, F_attention_n_kv_heads) == 4);
		const struct value *layers = spec_value(model, F_transformer_feed_forward);
		CHECK(layers->n == 2 && layers->list[0] == layers->list[1]);
		CHECK(!strcmp(
		    spec_str(spec_obj(s.trainer[i], F_trainer_precision), F_precision_weights),
		    i ? "bf16" : "fp32"));
		CHECK(!strcmp(spec_str(s.trainer[i], F_trainer_target), i ? "cuda:sm_90a" : "cpu"));
		CHECK(spec_num(s.trainer[i], F_trainer_device_memory) == targets[i].memory_gib);
	}
	CHECK(diag_flush() == 0);
	CHECK(s.n == 2 && !spec_equal(s.trainer[0], s.trainer[1]));

	struct define defs[] = { { "n", "0x10", false }, { "s", "1 2", false },
		{ "b", "true", false }, { "n", "3", false }, { "unused", "1", false } };
	const char *text =
	    "assert(arg.n == 3 and math.type(arg.n) == 'integer' and arg.s == '1 2')\n"
	    "assert(arg.b == true and arg.absent == nil)\n"
	    "local keys = {} for k in pairs { 5, x = 1, a = 2, [2.5] = 3 } do keys[#keys + 1] = k "
	    "end\n"
	    "assert(table.concat(keys, ' ') == '1 2.5 a x')\n"
	    "assert(next({}) == nil and next { 1 } == 1)\n"
	    "assert(tostring({}) == 'table' and string.format('%s %5.1f%%', print, 2) == 'function "
	    "  2.0%')\n"
	    "assert(('x'):rep(3, ',') == 'x,x,x' and (''):rep(1 << 60) == '')\n"
	    "assert(#'abc' == 3 and ('abc'):upper() == 'ABC' and _ENV ~= nil)\n"
	    "x = 1 assert(x == 1)\n";
	write_file(path_a, text, strlen(text));
	load(path_a, defs, LEN(defs), &s);
	CHECK(defs[0].used && defs[1].used && defs[2].used && defs[3].used && !defs[4].used);
	CHECK(diag_flush() == 2); /* returns nothing, one define unused */

	/* incomplete trainers print, for --dump=load */
	s = load_text(path_a, "return { trainer {}, trainer { model = transformer {} } }");
	for (uint32_t i = 0; i < s.n; i++) {
		struct buf b = { 0 };
		spec_print(s.trainer[i], true, &b);
		CHECK(b.n > 0);
	}
	CHECK(s.n == 2 && diag_flush() == 0);
}

static void
test_choices(void)
{
	CHECK(!strcmp(spec_choices("a|b|c", "<", ">"), "<a>, <b> or <c>"));
	CHECK(spec_choice("fp32|fp64", "fp64") && !spec_choice("fp32|fp64", "fp6") &&
	      !spec_choice("fp32|fp64", ""));
}

/* ---- random changes of a valid description ---- */

static const char seed_text[] =
    "#!olmogen\n"
    "--[==[ a long\n comment ]==] local width <const> = 16 -- to the end\n"
    "local function layer(i)\n"
    "\tif i % 2 == 0 then return mlp { hidden_size = width * 4 } end\n"
    "\tlocal r = router { [\"load_balance\"] = 1e-2; z_loss = .5 }\n"
    "\treturn moe({ num_experts = arg.experts or 0x8, top_k = 2, hidden_size = width // 2, router "
    "= r })\n"
    "end\n"
    "local list = {}\n"
    "for i = 1, 2 do\n"
    "\tlist[i] = trainer {\n"
    "\t\tname = \"t-\" .. i .. [[_x]],\n"
    "\t\ttarget = 'cpu',\n"
    "\t\tmodel = transformer {\n"
    "\t\t\tvocab_size = 64, d_model = width, n_layers = 3, sequence_length = 8,\n"
    "\t\t\tnorm = rms_norm { eps = 1e-5 }, attention = attention { n_heads = 2, qk_norm = \"full\" "
    "},\n"
    "\t\t\tfeed_forward = i == 1 and layer or { layer(0), layer(1), layer(2) },\n"
    "\t\t},\n"
    "\t\tbatch = batch { micro = 1, global = 8 }, parallel = parallel { data = 2, expert = 2 },\n"
    "\t\toptimizer = adamw { betas = { 0.9, 0.95 }, groups = { group { match = \"*a\", lr_scale = "
    "2 } } },\n"
    "\t}\n"
    "end\n"
    "return list\n";

static size_t
mutate(char *s, size_t n)
{
	static const char *const words[] = { "{", "}", "(", ")", "[", "]", "=", ",", "--", "--[[",
		"[[", "]]", "[==[", "\"", "'", "\\", "\\z", "\n", "\r\n", "end", "function", "nil",
		"..", "0x", "1e", "moe ", "arg", "return ", "\xef\xbb\xbf", "\xe5\xb1\x82", "do ",
		"1 << 62", "-1", "0/0", "layer", "#", "::" };
	for (uint64_t changes = 1 + next_random() % 4; changes; changes--) {
		size_t p = next_random() % (n + 1), len = 1 + next_random() % 12;
		const char *word = words[next_random() % LEN(words)];
		switch (next_random() % 5) {
		case 0:
			if (p < n)
				s[p] = (char)next_random();
			break;
		case 1: /* cut some */
			len = p + len > n ? n - p : len;
			memmove(s + p, s + p + len, n - p - len);
			n -= len;
			break;
		case 2: /* insert a word */
			memmove(s + p + strlen(word), s + p, n - p);
			memcpy(s + p, word, strlen(word));
			n += strlen(word);
			break;
		case 3: /* repeat some */
			len = p + len > n ? n - p : len;
			memmove(s + p + len, s + p, n - p);
			n += len;
			break;
		case 4: /* cut the end, seldom */
			if (next_random() % 8 == 0)
				n = p;
			break;
		}
	}
	return n;
}

static void
test_mutations(void)
{
	static char s[2 * sizeof(seed_text)];
	struct spec spec;
	int valid = 0;
	for (int i = 0; i < MUTATIONS; i++) {
		memcpy(s, seed_text, sizeof(seed_text));
		size_t n = i ? mutate(s, sizeof(seed_text) - 1) : sizeof(seed_text) - 1;
		struct define def = { "experts", "8", false };
		write_file(path_a, s, n);
		load(path_a, &def, 1, &spec);
		for (uint32_t k = 0; k < spec.n; k++)
			check(spec.trainer[k], targets, NULL);
		bool errors = diag_count() != 0;
		if (!errors && spec.n) {
			struct buf b = { 0 };
			spec_print(spec.trainer[0], true, &b);
			valid++;
		}
		CHECK((diag_flush() != 0) == errors);
		if (!n || *s == '#' || *s == '\033' || !spec.file || !memcmp(s, "\xef\xbb\xbf", 3))
			continue;
		/* Lua takes the split text exactly if it takes the text */
		size_t m;
		char *split = srcpos_split(spec.file, &m);
		bool plain_ok = run_lua(s, n, false) != NULL;
		CHECK(plain_ok == (run_lua(split, m, false) != NULL));
	}
	CHECK(valid > MUTATIONS / 100);
}

/* A line of resolved.lua is of the description's line that gives its value, or what is around. */
static void
test_origins(void)
{
	struct spec s = load_text(path_a,
	    "return trainer {\n"
	    "  name = 'test',\n"
	    "  model = transformer { vocab_size = 64, n_layers = 1, sequence_length = 8,\n"
	    "    d_model = 16,\n"
	    "    attention = attention {\n"
	    "      n_heads = 2 }, feed_forward = mlp { hidden_size = 8 } },\n"
	    "  batch = batch { micro = 1, global = 1 } }\n");
	const struct object *model = spec_obj(s.trainer[0], F_trainer_model);
	const struct object *attention;
	const char *name = strrchr(path_a, '/') + 1;
	struct buf b = { 0 };

	check(s.trainer[0], targets, NULL);
	CHECK(!diag_flush());
	spec_print(s.trainer[0], true, &b);
	attention = spec_value(model, F_transformer_attention)->list[0];
	const struct {
		const struct value *v;
		unsigned line;
	} want[] = {
		{ spec_value(model, F_transformer_d_model), 4 },
		{ spec_value(attention, F_attention_n_heads), 6 },
		{ spec_value(attention, F_attention_head_dim), 5 },
		{ spec_value(model, F_transformer_norm), 3 },
		{ spec_value(s.trainer[0], F_trainer_fuse), 1 },
	};
	for (uint32_t i = 0; i < LEN(want); i++)
		CHECK(!strcmp(want[i].v->line->origin, xprintf("%s:%u", name, want[i].line)));
	CHECK(strstr(b.s, xprintf("d_model = 16, -- %s:4\n", name)));
	CHECK(strstr(b.s, "head_dim = 8,\n"));
}

/* A copy is changed as an edit of the text would change it: all that is made at a place. */
static void
test_changes(void)
{
	struct spec s = load_text(path_a,
	    description(3,
		"function(l) return l < 2 and mlp { hidden_size = 8 }\n or mlp { hidden_size = 9 "
		"} end",
		"device_memory = 2000000"));
	const struct object *model = spec_obj(s.trainer[0], F_trainer_model);
	const struct value *layers = spec_value(model, F_transformer_feed_forward);
	struct pos at = spec_value(layers->list[0], F_mlp_hidden_size)->pos;
	struct pos memory = spec_value(s.trainer[0], F_trainer_device_memory)->pos;
	struct object *t;

	check(s.trainer[0], targets, NULL);
	CHECK(diag_count() == 1 && !spec_whole(s.trainer[0])); /* so much memory is refused */
	diag_flush();
	t = spec_copy(s.trainer[0]);
	CHECK(spec_whole(t) && spec_change(t, &(struct change){ F_mlp_hidden_size, at, "5" }));
	layers = spec_value(spec_obj(t, F_trainer_model), F_transformer_feed_forward);
	for (uint32_t l = 0; l < 3; l++)
		CHECK(spec_int(layers->list[l], F_mlp_hidden_size) == (l < 2 ? 5 : 9));
	CHECK(spec_change(t, &(struct change){ .f = F_transformer_n_layers, .lua = "5" }));
	CHECK(layers->n == 5 && spec_int(layers->list[4], F_mlp_hidden_size) == 9);
	CHECK(spec_change(t, &(struct change){ .f = F_parallel_data, .lua = "4" }));
	CHECK(!spec_change(t, &(struct change){ F_moe_top_k, { 0 }, "4" }));
	CHECK(spec_change(t, &(struct change){ F_trainer_device_memory, memory, NULL }));
	check(t, targets, NULL);
	CHECK(!diag_count() && spec_int(spec_obj(t, F_trainer_parallel), F_parallel_data) == 4);
	CHECK(spec_num(t, F_trainer_device_memory) == 0 &&
	      !spec_value(spec_obj(s.trainer[0], F_trainer_parallel), F_parallel_data)->given);
}

/* Bytes of any number of numbers, with their scales, and in what kernels know. */
static void
test_formats(void)
{
	static const struct {
		const char *name;
		uint64_t n, bytes, least2, least4;
	} want[] = {
		{ "bf16", 3, 6, 6, 12 },
		{ "fp32", 3, 12, 12, 12 },
		{ "int64", 3, 24, 24, 24 },
		{ "e2m1", 3, 2, 2, 2 },
		{ "mxfp8", 0, 0, 0, 0 },
		{ "mxfp8", 1, 1 + 1, 2, 4 },
		{ "mxfp8", 32, 32 + 1, 64, 128 },
		{ "mxfp8", 33, 33 + 2, 66, 132 },
		{ "fp8_block", 127, 127 + 4, 254, 508 },
		{ "fp8_block", 129, 129 + 8, 258, 516 },
	};

	for (uint32_t i = 0; i < LEN(want); i++) {
		const struct format *f = format_find(want[i].name);
		const struct target_kind kind[] = { { .least_bytes = 2 }, { .least_bytes = 4 } };
		const struct target_row two = { .kind = &kind[0] }, four = { .kind = &kind[1] };
		CHECK(format_bytes(f, want[i].n) == want[i].bytes);
		CHECK(target_bytes(&two, f, want[i].n) == want[i].least2);
		CHECK(target_bytes(&four, f, want[i].n) == want[i].least4);
	}
}

int
main(void)
{
	FILE *null = fopen("/dev/null", "w");
	if (!null || mkstemp(path_a) < 0 || mkstemp(path_b) < 0) {
		perror("lang_test");
		return 1;
	}
	stderr = null; /* messages are tested by tests/err; a sanitizer's go to the descriptor */
	test_positions();
	test_split();
	test_choices();
	test_values();
	test_round_trips();
	test_origins();
	test_formats();
	test_changes();
	test_mutations();
	unlink(path_a);
	unlink(path_b);
	return check_end();
}
