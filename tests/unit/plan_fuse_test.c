/*
 * Fusion finds what a pattern says and nothing else: small graphs as text, patterns of their own,
 * and what must come out. Ops stand for any with as many arguments: what they compute plays no
 * part.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "describe.h"

/* ---- graphs as text: "y = linear(x, w) ; y, r = rmsnorm(x, w; p=2) ; @ +g = bias_bwd(y)" ---- */

enum { EMBED, KIND, HEAD, UPDATE };

/* A tensor by name; w... is a weight, g... a gradient sum, s... a statistic, none is none. */
static tensor_id
tensor(struct graph *g, const char *name)
{
	tensor_id t = !!strcmp(name, "none");

	while (t && t < g->tensor.n && strcmp(g->tensor.a[t].name, name))
		t++;
	if (t == g->tensor.n) {
		graph_tensor(g, name, T_ACT, ROLE_ACT, KIND);
		g->tensor.a[t].name = name;
		g->tensor.a[t].class = *name == 'w'   ? T_PARAM
				       : *name == 'g' ? T_GRAD
				       : *name == 's' ? T_STAT
						      : T_ACT;
	}
	return t;
}

static const char *
next(const char **s)
{
	static const char word[] = "abcdefghijklmnopqrstuvwxyz0123456789_";

	*s += strcspn(*s, word);
	size_t n = strspn(*s, word);
	const char *w = xprintf("%.*s", (int)n, *s);
	*s += n;
	return w;
}

/* "@" before an op: the data ranks do it together. */
static void
add_ops(struct graph *g, uint32_t seg, int phase, const char *s)
{
	while (*s) {
		struct op o = { .group = *s == '@' ? OM_DATA : OM_ALONE };
		tensor_id out[MAX_ARGS];
		uint8_t nout = 0, nin = 0;
		for (; s[strspn(s, "@+, ")] != '='; nout++)
			out[nout] = tensor(g, next(&s));
		const char *name = next(&s);
		o.op = op_find((struct word){ name, strlen(name) });
		const struct op_row *r = op_row(o.op);
		for (; *s != ')' && *s != ';'; nin++)
			o.arg[nin] = tensor(g, next(&s));
		while (*s != ')') {
			const char *letter = next(&s);
			o.ints[strchr(r->ints, *letter) - r->ints] = strtoull(next(&s), NULL, 10);
		}
		if (nin != r->nin || nout != r->nout)
			abort();
		memcpy(o.arg + nin, out, nout * sizeof *out);
		*PUSH(g->seg.a[seg].ops[phase]) = o;
		s += strspn(s, " );");
	}
}

static const char *
text(const struct graph *g, uint32_t seg, int phase)
{
	struct buf b = { 0 };

	buf_puts(&b, "");
	for (uint32_t i = 0; i < g->seg.a[seg].ops[phase].n; i++)
		buf_printf(&b, "%s%s%s", i ? " ; " : "",
		    g->seg.a[seg].ops[phase].a[i].group ? "@" : "",
		    op_text(g, &g->seg.a[seg].ops[phase].a[i]));
	return b.s;
}

static struct graph *
graph(const char *forward, const char *backward)
{
	static const char *const names[] = { "embed", "kind", "head", "update" };
	struct graph *g = xalloc(sizeof *g);

	(void)PUSH(g->tensor);
	g->tensor.a[0].name = "";
	for (unsigned i = 0; i < LEN(names); i++)
		PUSH(g->seg)->name = names[i];
	g->embed = EMBED;
	g->head = HEAD;
	g->update = UPDATE;
	g->seg.a[KIND].x = tensor(g, "x");
	g->seg.a[KIND].y = tensor(g, "y");
	g->seg.a[KIND].dx = tensor(g, "dx");
	g->seg.a[KIND].dy = tensor(g, "dy");
	add_ops(g, KIND, FORWARD, forward);
	add_ops(g, KIND, BACKWARD, backward);
	return g;
}

static void
same(const char *what, const char *got, const char *want)
{
	expect(!strcmp(got, want), xprintf("%s\n  got  %s\n  want %s", what, got, want));
}

/* ---- what is found ---- */

#define PAIR "t = relu2(a) ; b = linear(t, w)", "b = linear(a, w)"
#define ACROSS                                                                                     \
	"forward: t, +s = head_loss(a, w, c, o) ; backward: d, +g = head_loss_bwd(a, w, c, o, t)", \
	    "+s, d, +g = head_loss_grad(a, w, c, o)"
#define THREE \
	"q = linear(a, w1) ; k = linear(a, w2) ; v = linear(a, w3)", "q, k, v = route_map(a, w2)"
#define CHAIN "t = add(a, b) ; y = add(t, c)", "y = combine(a, b, c)"
#define SUMS "+g = linear_dw(a, b) ; +g = linear_dw(c, b)", "+g = grouped_dw(a, c, b)"
#define NORMS "t, r = rmsnorm(a, w1) ; b, q = rmsnorm(t, w2)", "b, q = rmsnorm(a, w2)"
#define LEFT_OUT "t = linear(a, w) ; q, s = quantise(t)", "q, s = linear_2(a, w)"
#define HEAD_FORWARD "r, +s1 = head_loss(x, w1, l, o)"
#define HEAD_BACKWARD "dx, +g1 = head_loss_bwd(x, w1, l, o, r)"

static const struct {
	const char *what, *forward, *backward, *match, *into;
	const char *fused_forward, *fused_backward; /* NULL: as it was */
} cases[] = {
	{ "two ops of the forward pass", "h = relu2(x) ; y = linear(h, w1)", "", PAIR,
	    "y = linear(x, w1)", NULL },
	{ "two ops of the backward pass", "", "h = relu2(dy) ; dx = linear(h, w1)", PAIR, NULL,
	    "dx = linear(dy, w1)" },
	{ "each of two passes", "h = relu2(x) ; y = linear(h, w1)",
	    "i = relu2(dy) ; dx = linear(i, w1)", PAIR, "y = linear(x, w1)",
	    "dx = linear(dy, w1)" },
	{ "a phase that is said is no other", "h = relu2(x) ; y = linear(h, w1)",
	    "i = relu2(dy) ; dx = linear(i, w1)", "backward: t = relu2(a) ; b = linear(t, w)",
	    "b = linear(a, w)", NULL, "dx = linear(dy, w1)" },
	{ "nothing goes across that does not say so", "h = relu2(x)", "dx = linear(h, w1)", PAIR,
	    NULL, NULL },
	{ "across", HEAD_FORWARD, HEAD_BACKWARD, ACROSS, "",
	    "+s1, dx, +g1 = head_loss_grad(x, w1, l, o; scale=0, z=0)" },
	{ "across, found from its end", HEAD_FORWARD, HEAD_BACKWARD,
	    "backward: d, +g = head_loss_bwd(a, w, c, o, t) ; forward: t, +s = head_loss(a, w, c, "
	    "o)",
	    "+s, d, +g = head_loss_grad(a, w, c, o)", "",
	    "+s1, dx, +g1 = head_loss_grad(x, w1, l, o; scale=0, z=0)" },
	{ "across, with other weights", HEAD_FORWARD, "dx, +g1 = head_loss_bwd(x, w2, l, o, r)",
	    ACROSS, NULL, NULL },
	{ "across, from one sum of two in a pass", "+s1 = linear_dw(x, x) ; " HEAD_FORWARD,
	    HEAD_BACKWARD, ACROSS, NULL, NULL },
	{ "across, from a sum that an op before reads", "h = relu2(s1) ; " HEAD_FORWARD,
	    HEAD_BACKWARD, ACROSS, NULL, NULL },
	{ "across, to one sum of two in a pass", HEAD_FORWARD,
	    "+g1 = linear_dw(x, x) ; " HEAD_BACKWARD, ACROSS, "",
	    "+g1 = linear_dw(x, x) ; +s1, dx, +g1 = head_loss_grad(x, w1, l, o; scale=0, z=0)" },
	/* readers */
	{ "a reader in the backward pass", "h = relu2(x) ; y = linear(h, w1)",
	    "dx = relu2_bwd(dy, h)", PAIR, NULL, NULL },
	{ "a reader between", "h = relu2(x) ; i = relu2(h) ; y = linear(h, w1)", "", PAIR, NULL,
	    NULL },
	{ "a reader after", "h = relu2(x) ; y = linear(h, w1) ; i = relu2(h)", "", PAIR, NULL,
	    NULL },
	{ "an op that reads it twice", "h = add(x, x) ; y = add(h, h)", "", CHAIN, NULL, NULL },
	{ "one name is one tensor", "h = relu2(x) ; y = add(h, x)", "",
	    "t = relu2(a) ; b = add(t, t)", "b = relu2(a)", NULL, NULL },
	{ "one name twice", "h = relu2(x) ; y = add(h, h)", "", "t = relu2(a) ; b = add(t, t)",
	    "b = relu2(a)", "y = relu2(x)", NULL },
	{ "the stream is not lost", "y = relu2(x) ; h = linear(y, w1)", "", PAIR, NULL, NULL },
	{ "nor its gradient", "", "dx = relu2(dy) ; h = linear(dx, w1)", PAIR, NULL, NULL },
	{ "nor a sum", "", "+g1 = bias_bwd(dy) ; dx = add(dy, g1)",
	    "+g = bias_bwd(a) ; b = add(a, g)", "b = relu2(a)", NULL, NULL },
	/* three ops and more, and where what they become is done */
	{ "three ops: in the place of the last",
	    "h = linear(x, w1) ; i = relu2(x) ; j = linear(x, w2) ; k = linear(x, w3)", "", THREE,
	    "i = relu2(x) ; h, j, k = route_map(x, w2)", NULL },
	{ "two are not three", "h = linear(x, w1) ; i = linear(x, w2) ; y = linear(i, w3)", "",
	    THREE, NULL, NULL },
	{ "what the first gives is read between: in its place",
	    "h = linear(x, w1) ; m = relu2(h) ; i = linear(x, w2) ; n = relu2(i) ; j = linear(x, "
	    "w3)",
	    "", THREE, "h, i, j = route_map(x, w2) ; m = relu2(h) ; n = relu2(i)", NULL },
	{ "what the second gives is read, and what the third reads comes, between: in its place",
	    "h = linear(x, w1) ; i = relu2(w3) ; j = linear(x, w2) ; m = relu2(j) ; k = linear(x, "
	    "i)",
	    "", THREE, "i = relu2(w3) ; h, j, k = route_map(x, w2) ; m = relu2(j)", NULL },
	{ "what the first gives makes what the third reads",
	    "h = linear(x, w1) ; m = relu2(h) ; i = linear(x, w2) ; j = linear(x, m)", "", THREE,
	    NULL, NULL },
	{ "a tree, found in whatever order it stands",
	    "h = relu2(w1) ; i = relu2(x) ; y = add(i, h)", "",
	    "e = add(c, d) ; c = relu2(a) ; d = relu2(b)", "e = add(a, b)", "y = add(x, w1)",
	    NULL },
	{ "a first choice that leads nowhere",
	    "h = relu2(x) ; i = relu2(h) ; j = relu2(w1) ; y = linear(j, w2)", "", PAIR,
	    "h = relu2(x) ; i = relu2(h) ; y = linear(w1, w2)", NULL },
	{ "five ops in both passes", "h = relu2(x) ; i = relu2(h) ; m = linear(i, w1)",
	    "d = linear_dx(dy, w2) ; e = relu2_bwd(d, h) ; dx = relu2_bwd(e, m)",
	    "forward: b = relu2(a) ; c = relu2(b) ; z = linear(c, w) ; backward: e = relu2_bwd(d, "
	    "b) ; f = relu2_bwd(e, z)",
	    "f = combine(a, w, d)", "", "d = linear_dx(dy, w2) ; dx = combine(x, w1, d)" },
	{ "five ops, of which the third has a reader",
	    "h = relu2(x) ; i = relu2(h) ; m = linear(i, w1) ; n = relu2(m)",
	    "d = linear_dx(dy, w2) ; e = relu2_bwd(d, h) ; dx = relu2_bwd(e, m)",
	    "forward: b = relu2(a) ; c = relu2(b) ; z = linear(c, w) ; backward: e = relu2_bwd(d, "
	    "b) ; f = relu2_bwd(e, z)",
	    "f = combine(a, w, d)", NULL, NULL },
	/* the order of effects */
	{ "two sums", "", "+g1 = linear_dw(dy, x) ; +g1 = linear_dw(w1, x)", SUMS, NULL,
	    "+g1 = grouped_dw(dy, w1, x)" },
	{ "a third added between", "",
	    "+g1 = linear_dw(dy, x) ; +g1 = linear_dw(x, w1) ; +g1 = linear_dw(w1, x)", SUMS, NULL,
	    NULL },
	{ "another sum between", "",
	    "+g1 = linear_dw(dy, x) ; +g2 = linear_dw(x, w1) ; +g1 = linear_dw(w1, x)", SUMS, NULL,
	    "+g2 = linear_dw(x, w1) ; +g1 = grouped_dw(dy, w1, x)" },
	{ "a sum that is read between", "",
	    "+g1 = linear_dw(dy, x) ; h = relu2(g1) ; +g1 = linear_dw(w1, x)", SUMS, NULL, NULL },
	{ "what the first reads is written between: in its place",
	    "h = relu2(s1) ; +s1 = linear_dw(x, x) ; y = linear(h, w1)", "", PAIR,
	    "y = linear(s1, w1) ; +s1 = linear_dw(x, x)", NULL },
	{ "and what the second reads, too",
	    "h = relu2(s1) ; +s1 = linear_dw(x, x) ; i = relu2(x) ; y = linear(h, i)", "", PAIR,
	    NULL, NULL },
	/* overlaps */
	{ "a chain of three: the first two", "h = add(x, p) ; i = add(h, q) ; j = add(i, r)", "",
	    CHAIN, "i = combine(x, p, q) ; j = add(i, r)", NULL },
	{ "a chain of four: two and two",
	    "h = add(x, p) ; i = add(h, q) ; j = add(i, r) ; y = add(j, x)", "", CHAIN,
	    "i = combine(x, p, q) ; y = combine(i, r, x)", NULL },
	{ "a chain of three that cannot lose its first: the last two",
	    "h = add(x, p) ; i = add(h, q) ; j = add(i, h)", "", CHAIN,
	    "h = add(x, p) ; j = combine(h, q, h)", NULL },
	/* arguments that an op can do without */
	{ "what a pattern leaves out is not there",
	    "h = linear(x, w1) ; y, s1, +none = quantise(h, none; b=2)", "", LEFT_OUT,
	    "y, s1 = linear_2(x, w1)", NULL },
	{ "what a pattern leaves out is there",
	    "h = linear(x, w1) ; y, s1, +none = quantise(h, x; b=2)", "", LEFT_OUT, NULL, NULL },
	{ "what a pattern leaves out is written",
	    "h = linear(x, w1) ; y, s1, +s2 = quantise(h, none; b=2)", "", LEFT_OUT, NULL, NULL },
	/* constants and ranks */
	{ "equal ints are kept", "h, i = rmsnorm(x, w1; p=2) ; y, j = rmsnorm(h, w2; p=2)", "",
	    NORMS, "y, j = rmsnorm(x, w2; p=2, eps=0)", NULL },
	{ "ints that differ", "h, i = rmsnorm(x, w1; p=2) ; y, j = rmsnorm(h, w2; p=4)", "", NORMS,
	    NULL, NULL },
	{ "what ranks do together", "@h = relu2(x) ; @y = linear(h, w1)", "", PAIR,
	    "@y = linear(x, w1)", NULL },
	{ "what ranks do together, and alone", "@h = relu2(x) ; y = linear(h, w1)", "", PAIR, NULL,
	    NULL },
};

static void
one_pattern(void)
{
	for (unsigned i = 0; i < LEN(cases); i++) {
		struct graph *g = graph(cases[i].forward, cases[i].backward);
		const char *forward = text(g, KIND, FORWARD), *backward = text(g, KIND, BACKWARD);
		struct fusion f = { cases[i].match, cases[i].into };
		const char *want = cases[i].fused_forward;
		fuse_graph(g, NULL, &f, 1);
		same(cases[i].what, text(g, KIND, FORWARD), want ? want : forward);
		want = cases[i].fused_backward;
		same(cases[i].what, text(g, KIND, BACKWARD), want ? want : backward);
	}
}

/* What other segments do to a sum matters where an op would leave its pass, and only there. */
static void
other_segments(void)
{
	static const struct fusion across = { ACROSS }, pair = { PAIR };
	static const struct {
		const char *what;
		uint32_t seg;
		int phase;
		const char *op;
		bool fused;
	} others[] = {
		{ "another layer adds to the sum", EMBED, FORWARD, "+s1 = linear_dw(w1, w1)",
		    false },
		{ "the head adds to the sum", HEAD, BACKWARD, "+s1 = linear_dw(w1, w1)", false },
		{ "the head reads the sum", HEAD, FORWARD, "u = relu2(s1)", false },
		{ "the update reads the sum", UPDATE, FORWARD, "+g2 = bias_bwd(s1)", true },
		{ "another layer adds to the gradient", HEAD, BACKWARD, "+g1 = linear_dw(w1, w1)",
		    true },
	};

	for (unsigned i = 0; i < LEN(others); i++) {
		struct graph *g = graph(HEAD_FORWARD, HEAD_BACKWARD);
		add_ops(g, others[i].seg, others[i].phase, others[i].op);
		fuse_graph(g, NULL, &across, 1);
		same(others[i].what, g->seg.a[KIND].ops[FORWARD].n ? "apart" : "one",
		    others[i].fused ? "one" : "apart");
	}
	struct graph *g = graph("h = relu2(x)", "");
	add_ops(g, HEAD, FORWARD, "z = linear(h, w1)");
	fuse_graph(g, NULL, &pair, 1);
	same("nothing is found across segments", text(g, HEAD, FORWARD), "z = linear(h, w1)");
	add_ops(g, UPDATE, FORWARD, "m = relu2(n) ; o = linear(m, w1)");
	fuse_graph(g, NULL, &pair, 1);
	same("the update is a segment, too", text(g, UPDATE, FORWARD), "o = linear(n, w1)");
}

/* Rows hold in their order; what one made, a later one finds. */
static void
several_patterns(void)
{
	static const char ops[] = "h = relu2(x) ; i = linear(h, w1) ; y = add(i, p)";
	static const struct fusion first[] = { { PAIR },
		{ "a = linear(b, w) ; c = add(a, d)", "c = combine(b, w, d)" } };
	const struct fusion second[] = { first[1], first[0] };
	struct graph *g = graph(ops, ops + strlen(ops));

	fuse_graph(g, NULL, first, 2);
	same("one row, then the next on what it made", text(g, KIND, FORWARD),
	    "y = combine(x, w1, p)");
	g = graph(ops, "");
	fuse_graph(g, NULL, second, 2);
	same("the other way round the first takes what the second wants", text(g, KIND, FORWARD),
	    "h = relu2(x) ; y = combine(h, w1, p)");
}

/* Parameters become one in storage where they may, in the order in which they were made. */
static void
merging(void)
{
#define TWO "a = linear(x, w1) ; b = linear(x, w2)"
#define INTO "a, b = linear_2(x, w1|w2)"
	static const struct fusion two = { TWO, INTO };
	static const struct {
		const char *what, *forward, *want;
		uint64_t rows, width; /* of w_b */
		uint32_t group, seg;  /* of w_b */
		bool experts;         /* of w_b */
	} all[] = {
		{ "two weights", "h = linear(x, w_a) ; i = linear(x, w_b)",
		    "h, i = linear_2(x, w_a_b)", 3, 4, 0, KIND, false },
		{ "the first made stands first", "h = linear(x, w_b) ; i = linear(x, w_a)",
		    "i, h = linear_2(x, w_a_b)", 3, 4, 0, KIND, false },
		{ "one weight twice", "h = linear(x, w_a) ; i = linear(x, w_a)", NULL, 3, 4, 0,
		    KIND, false },
		{ "a weight and what is none", "h = linear(x, w_a) ; i = linear(x, y)", NULL, 3, 4,
		    0, KIND, false },
		{ "rows of another width", "h = linear(x, w_a) ; i = linear(x, w_b)", NULL, 3, 5, 0,
		    KIND, false },
		{ "another update", "h = linear(x, w_a) ; i = linear(x, w_b)", NULL, 3, 4, 1, KIND,
		    false },
		{ "of another segment", "h = linear(x, w_a) ; i = linear(x, w_b)", NULL, 3, 4, 0,
		    HEAD, false },
		{ "experts' and another", "h = linear(x, w_a) ; i = linear(x, w_b)", NULL, 3, 4, 0,
		    KIND, true },
		{ "those again that are merged",
		    "h = linear(x, w_a) ; i = linear(x, w_b) ; j = linear(y, w_a) ; k = linear(y, "
		    "w_b)",
		    "h, i = linear_2(x, w_a_b) ; j, k = linear_2(y, w_a_b)", 3, 4, 0, KIND, false },
		{ "one of those that are merged, and another",
		    "h = linear(x, w_a) ; i = linear(x, w_b) ; j = linear(y, w_b) ; k = linear(y, "
		    "w_c)",
		    "h, i = linear_2(x, w_a_b) ; j = linear(y, w_b) ; k = linear(y, w_c)", 3, 4, 0,
		    KIND, false },
	};

	for (unsigned i = 0; i < LEN(all); i++) {
		struct graph *g = graph("", "");
		tensor_id a = tensor(g, "w_a"), b = tensor(g, "w_b"), c = tensor(g, "w_c");
		g->seg.a[KIND].name = "w"; /* names of tensors begin with it */
		g->tensor.a[a].ndims = g->tensor.a[b].ndims = g->tensor.a[c].ndims = 2;
		memcpy(g->tensor.a[a].dim, (uint64_t[]){ 2, 4 }, 2 * sizeof(uint64_t));
		memcpy(g->tensor.a[c].dim, (uint64_t[]){ 2, 4 }, 2 * sizeof(uint64_t));
		memcpy(g->tensor.a[b].dim, (uint64_t[]){ all[i].rows, all[i].width },
		    2 * sizeof(uint64_t));
		g->tensor.a[b].param_group = all[i].group;
		g->tensor.a[b].seg = all[i].seg;
		g->tensor.a[b].copies = all[i].experts ? OM_EXPERT_DATA : OM_ALONE;
		add_ops(g, KIND, FORWARD, all[i].forward);
		const char *before = text(g, KIND, FORWARD);
		fuse_graph(g, NULL, &two, 1);
		same(all[i].what, text(g, KIND, FORWARD), all[i].want ? all[i].want : before);
		tensor_id whole = g->tensor.a[a].whole;
		expect(!all[i].want == !whole && g->tensor.a[b].whole == whole, "parts know it");
		if (whole)
			expect(g->tensor.a[whole].dim[0] == 2 + all[i].rows &&
				   g->tensor.a[whole].dim[1] == 4 &&
				   tensor_parts(g, whole).a[0] == a &&
				   tensor_parts(g, whole).a[1] == b && !tensor_parts(g, whole).a[2],
			    "all rows, in order");
	}
}

/* A row that means nothing is olmogen's own bug: each in a child, which must say so. */
static void
wrong_rows(void)
{
	static const struct {
		const char *what;
		struct fusion row;
	} rows[] = {
		{ "one op alone", { "b = relu2(a)", "b = relu2(a)" } },
		{ "a merged argument of what is looked for",
		    { "t = relu2(a) ; b = linear(t, v|w)", "b = linear(a, v|w)" } },
		{ "a part from nowhere",
		    { "t = relu2(a) ; b = linear(t, w)", "b = linear(a, w|v)" } },
		{ "no such op", { "t = relu3(a) ; b = linear(t, w)", "b = linear(a, w)" } },
		{ "an argument too few", { "t = relu2(a) ; b = linear(t)", "b = relu2(a)" } },
		{ "an output too many", { "t = relu2(a) ; b, c = linear(t, w)", "b = relu2(a)" } },
		{ "a sum that is none",
		    { "t = relu2(a) ; +b = linear(t, w)", "+b = linear(a, w)" } },
		{ "a sum without its sign",
		    { "t = relu2(a) ; b = linear_dw(t, w)", "b = relu2(a)" } },
		{ "ops that share nothing", { "t = relu2(a) ; b = relu2(c)", "b = relu2(a)" } },
		{ "an input from nowhere", { "t = relu2(a) ; b = relu2(t)", "b = linear(a, w)" } },
		{ "an output that nobody wrote",
		    { "t = relu2(a) ; b = relu2(t)", "a = relu2(a)" } },
		{ "an input that is lost", { "t = relu2(a) ; b = relu2(t)", "b = relu2(t)" } },
		{ "an int from nowhere",
		    { "t = relu2(a) ; b = linear(t, w)", "b, t = rmsnorm(a, w)" } },
	};

	for (unsigned i = 0; i < LEN(rows); i++) {
		int status = 0;
		fflush(stdout);
		pid_t child = fork();
		if (!child) {
			struct graph *g = graph("h = relu2(x) ; y = linear(h, w1)", "");
			if (!freopen("/dev/null", "w", stderr))
				_exit(1);
			fuse_graph(g, NULL, &rows[i].row, 1);
			_exit(0);
		}
		expect(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
			   WEXITSTATUS(status) == EXIT_INTERNAL,
		    rows[i].what);
	}
}

/* Nothing becomes an op that the target has no kernel for. */
static void
without_kernel(void)
{
	static const struct fusion gate_up = { "g = grouped(x, w1, off) ; u = grouped(x, w2, off)",
		"g, u = grouped_2(x, w1|w2, off)" };
	struct target_row target = *target_find(targets, "cpu");
	const struct target_kind none = { .name = "none" };

	for (int has = 0; has < 2; has++) {
		struct graph *g = graph_of(trainer_of("models/tiny.lua", NULL, 0, NULL));
		uint32_t tensors = g->tensor.n, one = 0;
		if (!has)
			target.kind = &none;
		fuse_graph(g, &target, &gate_up, 1);
		for (uint32_t s = g->embed; s <= g->head; s++)
			for (uint32_t i = 0; i < g->seg.a[s].ops[FORWARD].n; i++)
				one += g->seg.a[s].ops[FORWARD].a[i].op == OP_grouped_2;
		expect(one == (uint32_t)has && g->tensor.n == tensors + one,
		    has ? "a kernel for merged weights"
			: "no kernel, and no trace of the question");
		target = *target_find(targets, "cpu");
	}
}

/* The products of a layer of OLMoE become one each way where the GPU has a kernel for that. */
static void
products_on_gpus(void)
{
	static const char *const target[] = { "cuda:sm_90a", "cuda:sm_100a" };
	static const enum op_id fused[] = { OP_linear_3, OP_linear_dx_3, OP_grouped_glu,
		OP_grouped_dx_glu_h, OP_grouped_dx_2 };

	for (unsigned k = 0; k < LEN(target); k++) {
		struct define rows = { "recompute", "rows", false };
		struct shard *s =
		    shard_of(trainer_of("models/olmoe-1b-7b.lua", &rows, 1, target[k]));
		const struct graph *g = s->graph;
		uint32_t n[N_OPS] = { 0 };
		fuse(s);
		for (uint32_t seg = g->embed; seg <= g->head; seg++)
			for (int ph = 0; ph < N_PHASES; ph++)
				for (uint32_t i = 0; i < g->seg.a[seg].ops[ph].n; i++)
					n[g->seg.a[seg].ops[ph].a[i].op]++;
		for (unsigned i = 0; i < LEN(fused); i++)
			expect(n[fused[i]] == (k == 0), op_row(fused[i])->name);
		expect(n[OP_add] == 0 || k == 1, "no add is left beside a product");
	}
}

int
main(void)
{
	products_on_gpus();
	one_pattern();
	without_kernel();
	other_segments();
	several_patterns();
	merging();
	wrong_rows();
	return check_end();
}
