/* Sizes as text: sums, products and quotients of one-letter names and integers. */
#include <string.h>

#include "graph/graph.h"

struct parser {
	const char *s, *end;
	const struct sizes *z;
};

static uint64_t chain(struct parser *p, bool sum);

static uint64_t
atom(struct parser *p)
{
	if (p->s == p->end)
		internal("expression ends early");
	char c = *p->s++;
	if (c >= '0' && c <= '9') {
		uint64_t n = (uint64_t)(c - '0');
		while (p->s < p->end && *p->s >= '0' && *p->s <= '9')
			n = size_add(size_mul(n, 10), (uint64_t)(*p->s++ - '0'));
		return n;
	}
	if (c == '(') {
		uint64_t n = chain(p, true);
		if (p->s == p->end || *p->s++ != ')')
			internal("expression: ) expected");
		return n;
	}
	if (c < 'a' || c > 'z')
		internal("expression: unexpected '%c'", c);
	if (!p->z->bound[c - 'a'])
		internal("expression: size '%c' is not bound", c);
	return p->z->v[c - 'a'];
}

/* A sum of products, or a product of atoms. */
static uint64_t
chain(struct parser *p, bool sum)
{
	uint64_t n = sum ? chain(p, false) : atom(p);

	while (p->s < p->end && *p->s && strchr(sum ? "+-" : "*/", *p->s)) {
		char c = *p->s++;
		uint64_t m = sum ? chain(p, false) : atom(p);
		n = c == '+'   ? size_add(n, m)
		    : c == '-' ? n - m
		    : c == '*' ? size_mul(n, m)
			       : n / m;
	}
	return n;
}

uint64_t
expr_eval(const char *e, size_t n, const struct sizes *z)
{
	struct parser p = { e, e + n, z };
	uint64_t v = chain(&p, true);
	if (p.s != p.end)
		internal("expression '%.*s': unexpected '%c'", (int)n, e, *p.s);
	return v;
}
