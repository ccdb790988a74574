/* Sizes as text: sums, products and quotients of one-letter names and integers. */
#include "graph/graph.h"

struct parser {
	const char *s, *end;
	const struct sizes *z;
};

static uint64_t sum(struct parser *p);

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
		uint64_t n = sum(p);
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

static uint64_t
product(struct parser *p)
{
	uint64_t n = atom(p);
	while (p->s < p->end && (*p->s == '*' || *p->s == '/')) {
		char c = *p->s++;
		uint64_t m = atom(p);
		n = c == '*' ? size_mul(n, m) : n / m;
	}
	return n;
}

static uint64_t
sum(struct parser *p)
{
	uint64_t n = product(p);
	while (p->s < p->end && (*p->s == '+' || *p->s == '-')) {
		char c = *p->s++;
		uint64_t m = product(p);
		n = c == '+' ? size_add(n, m) : n - m;
	}
	return n;
}

uint64_t
expr_eval(const char *e, size_t n, const struct sizes *z)
{
	struct parser p = { e, e + n, z };
	uint64_t v = sum(&p);
	if (p.s != p.end)
		internal("expression '%.*s': unexpected '%c'", (int)n, e, *p.s);
	return v;
}
