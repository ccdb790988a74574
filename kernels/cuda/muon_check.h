/*
 * The checks of muon.h. Of a kernel's matrices the first and the last have numbers, whose singular
 * values are known (muon_ref.h); the others are zero.
 */
#ifndef OM_MUON_CHECK_H
#define OM_MUON_CHECK_H

static inline double
om_muon_random(uint64_t seed, int64_t i)
{
	return om_unit(seed, 9, i);
}

/* What a check is of: so many matrices, with mean squares of rows or without, drawn or not. */
struct om_muon_case {
	const struct om_muon_ref *a;
	int64_t matrices;
	bool rows, drawn;
	uint64_t seed;
	float scale;         /* of masters before: numbers of stream 1 */
	const int64_t *lots; /* on the host */
	int64_t away;        /* bytes from them to m */
};

/* A row's mean square before. */
static inline float
om_muon_row(const struct om_muon_case *t, int64_t row)
{
	const double x = om_unit(t->seed, 2, row);
	const float v = (float)((x * x + 0.25) / (double)(t->a->rows + t->a->cols));
	return t->drawn ? (float)om_drawn_ref(v, 0) : v;
}

/* Moments are written and read as floats, whatever they are. */
static inline void
om_muon_write(const struct om_muon_case *t, void *to, int64_t at, const float *from, int64_t n)
{
	om_bf16 *half = malloc(n * sizeof *half);
	for (int64_t i = 0; i < n; i++) {
		uint32_t bits;
		memcpy(&bits, from + i, sizeof bits);
		half[i] = bits >> 16;
	}
	if (t->drawn)
		om_check_write((om_bf16 *)to + at, half, n * sizeof *half);
	else
		om_check_write((float *)to + at, from, n * sizeof *from);
	free(half);
}

static inline void
om_muon_read(const struct om_muon_case *t, float *to, const void *from, int64_t at, int64_t n)
{
	om_bf16 *half = malloc(n * sizeof *half);
	if (t->drawn)
		om_check_read(half, (const om_bf16 *)from + at, n * sizeof *half);
	else
		om_check_read(to, (const float *)from + at, n * sizeof *to);
	for (int64_t i = 0; t->drawn && i < n; i++)
		to[i] = om_bf16_f32(half[i]);
	free(half);
}

/* What is known of a matrix: vectors, and diagonals of gradient and momentum; what these were. */
struct om_muon_known {
	double *u, *cas, *g, *m, *dq;
	float *gradient, *momentum;
};

/* Fills matrix k's gradient and momentum on the device. */
static inline struct om_muon_known
om_muon_fill(const struct om_muon_case *t, const struct om_muon_arrays *x, int64_t k)
{
	const struct om_muon_ref *a = t->a;
	const int64_t l = om_muon_less(a), h = a->rows + a->cols - l, size = l * h;
	const uint64_t seed = t->seed + (uint64_t)k;
	double *p = malloc(3 * (l + h) * sizeof *p);
	float *was = malloc(2 * size * sizeof *was);
	const struct om_muon_known y = { p, p + l, p + l + h, p + 2 * l + h, p + 3 * l + h, was,
		was + size };
	om_mirror_begin(a, y.u, y.cas, om_muon_random, seed);
	for (int64_t i = 0; i < l; i++) {
		y.g[i] = 1 + 0.4 * om_unit(seed, 3, i);
		y.m[i] = 1 + 0.4 * om_unit(seed, 4, i);
	}
	for (int what = 0; what < 2; what++) {
		const struct om_mirrored d = om_mirror(a, y.u, y.cas, what ? y.m : y.g, y.dq);
		for (int64_t i = 0; i < size; i++) {
			const float v = (float)om_mirrored(&d, i / a->cols, i % a->cols);
			was[what * size + i] = what && t->drawn ? (float)om_drawn_ref(v, 0) : v;
		}
	}
	om_check_write((float *)x->g + k * size, y.gradient, size * sizeof *was);
	om_muon_write(t, x->m, k * size, y.momentum, size);
	return y;
}

/* Matrix k's new momentum: float to a part of 100,000, or drawn to the bit. */
static inline double
om_muon_moments(const struct om_muon_case *t, const struct om_muon_known *known,
    const struct om_muon_arrays *x, int64_t k)
{
	const struct om_muon_ref *a = t->a;
	const int64_t size = a->rows * a->cols;
	const float beta = (float)(1 - a->momentum);
	float *m = malloc(size * sizeof *m);
	struct om_err e = { 0 };
	om_muon_read(t, m, x->m, k * size, size);
	for (int64_t i = 0; i < size; i++) {
		const float old = known->momentum[i], g = known->gradient[i] * 0.7f;
		const float now = fmaf(beta, g - old, old);
		if (!t->drawn)
			om_err_add(&e, m[i], now);
		else
			e.wrong |= m[i] != om_drawn_ref(now, om_lots_ref_word(t->lots, t->away,
								 sizeof(om_bf16), k * size + i) &
								 0xffff);
	}
	free(m);
	return 1200 * om_err_value(&e);
}

/* Mean squares of a matrix of zeros, drawn to the bit. */
static inline bool
om_muon_zeros(const struct om_muon_case *t, const struct om_muon_arrays *x, int64_t k)
{
	const struct om_muon_ref *a = t->a;
	float *v = malloc(a->rows * sizeof *v);
	bool right = true;
	om_muon_read(t, v, x->v, k * a->rows, a->rows);
	for (int64_t i = k * a->rows; i < (k + 1) * a->rows; i++) {
		const float old = om_muon_row(t, i);
		const uint32_t word =
		    om_lots_ref_word(t->lots, t->away, sizeof(om_bf16), i * a->cols);
		right &= v[i - k * a->rows] ==
			 om_drawn_ref(fmaf((float)(1 - a->beta2), 0 - old, old), word >> 16);
	}
	free(v);
	return right;
}

/*
 * Matrix k after the step. What comes of products in bf16 is off by up to 4 % of the largest, as
 * PyTorch's is, and counts a quarter.
 */
static inline double
om_muon_compare(const struct om_muon_case *t, const double *ctl, const struct om_muon_known *known,
    const struct om_muon_arrays *x, int64_t k)
{
	const struct om_muon_ref *a = t->a;
	const int64_t size = a->rows * a->cols, at = k * size;
	float *master = malloc(size * sizeof *master), *v = malloc(a->rows * sizeof *v);
	om_bf16 *w = malloc(size * sizeof *w);
	double *o = malloc(3 * (a->rows + a->cols) * sizeof *o), *want = o + om_muon_less(a),
	       *by = want + a->rows;
	struct om_err ew = { 0 }, ev = { 0 };
	om_check_read(master, x->master + at, size * sizeof *master);
	om_check_read(w, x->w + at, size * sizeof *w);
	if (t->rows)
		om_muon_read(t, v, x->v, k * a->rows, a->rows);
	om_muon_ref(a, ctl[OM_CTL_COEF], known->g, known->m, o);
	const struct om_mirrored mo = om_mirror(a, known->u, known->cas, o, known->dq);
	for (int64_t i = 0; i < a->rows; i++) {
		want[i] = om_muon_row(t, k * a->rows + i);
		by[i] = 1;
	}
	if (t->rows) {
		om_normuon_ref_rows(a, &mo, want, by);
		for (int64_t i = 0; i < a->rows; i++)
			om_err_add(&ev, v[i], want[i]);
		om_normuon_ref_factors(a, want, by);
	}
	for (int64_t i = 0; i < size; i++) {
		const double old = (float)om_unit(t->seed, 1, at + i) * t->scale;
		const double step = by[i / a->cols] * om_mirrored(&mo, i / a->cols, i % a->cols);
		om_err_add(&ew, master[i], om_muon_ref_weight(a, ctl[OM_CTL_LR], old, step));
		ew.wrong |= fabs((double)om_bf16_f32(w[i]) - master[i]) >
			    ldexp(fabs((double)master[i]), -8);
	}
	free(master);
	free(v);
	free(w);
	free(o);
	return fmax(om_err_value(&ew), om_err_value(&ev)) / 4;
}

/* A skipped step, and one that is not. */
static inline double
om_muon_check(void (*run)(const struct om_muon_arrays *, const double *, void *), int64_t n,
    int64_t b, const struct om_muon_ref *a, bool rows, bool drawn, uint64_t seed)
{
	const int64_t size = a->rows * a->cols, l = om_muon_less(a), last = n / size - 1;
	const size_t moment = drawn ? sizeof(om_bf16) : sizeof(float);
	int64_t lots[OM_LOTS_REF];
	struct om_muon_case t = { a, last + 1, rows, drawn, seed, .lots = lots };
	float *v = malloc(n / a->cols * sizeof *v), *g = om_check_nan(n * 4), *master;
	double scalars[OM_CTL_N] = { 0.125, NAN, NAN, NAN, 0.7, NAN, NAN, 1, 1 }, worst = 0;
	double *ctl = om_check_copy(scalars, sizeof scalars);
	void *ws =
	    om_check_nan(4 * (b * size + b * (l * l + l * l / 2) + 2 * b * OM_MUON_BLOCKS(size, 1) +
				 4 * b * a->rows + 4 * b + 4));
	int64_t *draw = om_check_nan(sizeof lots);
	struct om_muon_known known[2];
	uint64_t was, is;

	t.scale = (float)(0.25 * a->lr_scale * a->factor / sqrt((double)(a->rows + a->cols)));
	master = om_check_f32(n, seed, 1, t.scale);
	const struct om_muon_arrays x = { g, drawn ? draw : NULL, om_check_nan(n * 2), master,
		om_check_nan(n * moment), rows ? om_check_nan(n / a->cols * moment) : NULL };
	t.away = (const char *)x.m - (const char *)draw;
	om_lots_ref(lots, t.away, sizeof(om_bf16), n, 4, seed);
	om_check_write(draw, lots, sizeof lots);
	for (int64_t i = 0; i < n / a->cols; i++)
		v[i] = om_muon_row(&t, i);
	if (rows)
		om_muon_write(&t, x.v, 0, v, n / a->cols);
	om_set_zero(g, n * 4);
	om_set_zero(x.m, n * moment);
	for (int k = 0; k < 2; k++)
		known[k] = om_muon_fill(&t, &x, k * last);
	om_check_read(&was, x.m, sizeof was);
	run(&x, ctl, ws);
	om_check_read(&is, x.m, sizeof is);
	if (was != is)
		worst = OM_WRONG;
	scalars[OM_CTL_SKIPPED] = 0;
	om_check_write(ctl, scalars, sizeof scalars);
	run(&x, ctl, ws);
	for (int k = 0; k <= (last > 0); k++) {
		worst = fmax(worst, om_muon_moments(&t, &known[k], &x, k * last));
		worst = fmax(worst, om_muon_compare(&t, scalars, &known[k], &x, k * last));
	}
	if (rows && drawn && last > 1 && !om_muon_zeros(&t, &x, 1))
		worst = OM_WRONG;
	OM_TIME(run(&x, ctl, ws));
	om_check_end();
	free(v);
	for (int k = 0; k < 2; k++) {
		free(known[k].u);
		free(known[k].gradient);
	}
	return worst;
}

#endif
