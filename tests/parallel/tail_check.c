/*
 * What lies beyond the experts' rows is neither read nor written: the pages there can be neither,
 * so that whoever does dies. Checks of results are elsewhere. Built as expert_check is.
 */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "expert.h"
#include "glu.h"
#include "grouped.h"

/* c rows, as many as routes, of which all, some or none are valid; few: a token's */
#define T 65
#define K 2
#define C (T * K)
#define FEW 9
#define E 3
#define N 33
#define F 17
static const int32_t valid[] = { C, 70, 1, 0 };
enum { VALID = sizeof valid / sizeof *valid };

OM_GROUPED(grouped, C, E, F, N)
OM_GROUPED_DX(grouped_dx, C, E, F, N)
OM_GROUPED_DW(grouped_dw, C, E, F, N, 1)
OM_GROUPED(grouped_few, FEW, E, F, N)
OM_GROUPED_DX(grouped_dx_few, FEW, E, F, N)
OM_GROUPED_DW(grouped_dw_few, FEW, E, F, N, 1)
OM_GLU_ROWS(silu_rows, C, F, 0, 2)
OM_GLU_ROWS_BWD(silu_rows_bwd, C, F, 0, 2)
OM_RELU2_ROWS(relu2_rows, C, F, 2)
OM_RELU2_ROWS_BWD(relu2_rows_bwd, C, F, 2)
OM_EP_DISPATCH(dispatch, T, 5 * E, K, N, 1, C, 1)
OM_EP_COMBINE(combine, T, 5 * E, K, N, 1, C)
OM_EP_WEIGHTS(weights, T, 5 * E, K, 1, C, 1)
OM_EP_WEIGHTS_BWD(weights_bwd, T, 5 * E, K, 1, C)

/* n numbers that end where the forbidden pages begin. */
static om_real *
fenced(int64_t n)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (size_t)n * sizeof(om_real);
	const size_t room = (size + page - 1) / page * page, fence = 64 * page;
	char *p =
	    mmap(NULL, room + fence, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED || mprotect(p + room, fence, PROT_NONE)) {
		perror("mmap");
		exit(1);
	}
	om_real *x = (om_real *)(p + room - size);
	for (int64_t i = 0; i < n; i++)
		x[i] = (om_real)om_unit(1, (uint64_t)i);
	return x;
}

int
main(void)
{
	om_real *w = om_check_random(E * F * N, 1, 0), *dw = om_check_random(E * F * N, 1, 1);
	om_real *x = om_check_random(T * N, 1, 2), *p = om_check_random(T * K, 1, 3);
	om_real *ws = om_check_nan(T * K * N);
	int passed = 0;
	for (int i = 0; i < VALID; i++) {
		const int32_t v = valid[i], off[E + 1] = { 0, v / 4, v / 2, v }, two[] = { -1, v };
		om_real *wide[3] = { fenced(v * N), fenced(v * N), fenced(v * N) };
		om_real *h[5] = { fenced(v * F), fenced(v * F), fenced(v * F), fenced(v * F),
			fenced(v * F) };
		om_real *pr = fenced(v), *dpr = fenced(v);
		grouped(wide[0], w, off, h[0]);
		grouped_dx(h[0], w, off, wide[1]);
		grouped_dw(h[0], wide[0], off, dw);
		if (v <= FEW) {
			grouped_few(wide[0], w, off, h[0]);
			grouped_dx_few(h[0], w, off, wide[1]);
			grouped_dw_few(h[0], wide[0], off, dw);
		}
		silu_rows(h[0], h[1], pr, two, h[2]);
		silu_rows_bwd(h[2], h[0], h[1], pr, two, h[3], h[4], dpr);
		relu2_rows(h[0], pr, two, h[2]);
		relu2_rows_bwd(h[2], h[0], pr, two, h[3], dpr);

		struct om_ep_case c =
		    om_ep_check_case(&(struct om_ep){ T, E, K, N, 1, v, 1, T * K }, 1);
		dispatch(x, c.ref.idx, c.ref.row, c.ref.src, c.ref.map, wide[2], ws);
		combine(wide[2], c.ref.idx, c.ref.row, c.ref.map, x, ws);
		weights(p, c.ref.idx, c.ref.row, c.ref.src, c.ref.map, pr, ws);
		weights_bwd(pr, c.ref.idx, c.ref.row, c.ref.src, c.ref.map, p, ws);
		passed += c.ref.off[E] == v;
		om_ep_ref_free(&c.ref);
	}
	printf("%d passed, %d failed\n", passed, VALID - passed);
	return passed != VALID;
}
