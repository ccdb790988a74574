/*
 * The console (lines, and on a terminal a bar below them, redrawn in place) and the metrics: JSON
 * lines, one write a line, so that a kill leaves whole ones, and the same numbers for TensorBoard.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "om_rt.h"

/* ---- metrics --------------------------------------------------------------------------------- */

#define LOSS ", \"loss\": "
#define NORM ", \"grad_norm\": "

/* Step of a metrics line, OM_NO_STEP: it isn't one. */
static uint64_t
step_of(const char *line)
{
	static const char first[] = "{\"step\": ";

	return strncmp(line, first, sizeof first - 1) == 0
		   ? strtoull(line + sizeof first - 1, NULL, 10)
		   : OM_NO_STEP;
}

/* The number of a key in a line of metrics; NaN: null, or none. */
static double
read_number(const char *line, const char *key)
{
	const char *at = strstr(line, key);
	char *end;
	double x = at ? strtod(at + strlen(key), &end) : NAN;

	return at && end > at + strlen(key) ? x : NAN;
}

/*
 * Copies the lines up to step, whose spikes count, and drops the rest and one that a kill cut
 * short; gives whether any went.
 */
static bool
metrics_keep(FILE *f, FILE *out, uint64_t step, struct om_spike *spike)
{
	char *line = NULL;
	size_t cap = 0;
	bool cut = false;

	for (ssize_t n; (n = getline(&line, &cap, f)) > 0;)
		if (line[n - 1] != '\n' || (step_of(line) > step && step_of(line) != OM_NO_STEP)) {
			cut = true;
		} else {
			fwrite(line, 1, (size_t)n, out);
			if (strstr(line, LOSS))
				om_spike_step(spike,
				    (double[]){ read_number(line, LOSS), read_number(line, NORM) });
		}
	free(line);
	return cut;
}

/*
 * Opens the file for a run that has done `step` steps: a resumed run goes on in it after that step,
 * a new run moves an older one's file aside. add: it stays as it is, another trainer may write it.
 */
static FILE *
metrics_open(struct om_log *l, const char *path, uint64_t step, bool add)
{
	char first[64] = "", *other;
	struct stat st;
	FILE *f;
	int fd;

	if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size) {
		if (!(f = fopen(path, "r")) || !fgets(first, sizeof first, f))
			om_die("metrics", "%s: %s; correct log.metrics", path, strerror(errno));
		if (step_of(first) == OM_NO_STEP)
			om_die("metrics",
			    "%s: is not a file of metrics; give log.metrics another path", path);
		rewind(f);
		other = add ? NULL : om_free_name(path, step ? ".tmp" : ".old");
		if (step && !add) {
			FILE *out = fopen(other, "wx");
			bool cut = out && metrics_keep(f, out, step, &l->spike), ok;

			ok = out && !ferror(out) && fflush(out) == 0 && fsync(fileno(out)) == 0;
			if (!ok || fclose(out) != 0 ||
			    (cut ? rename(other, path) : remove(other)) != 0)
				om_die("metrics", "%s: %s; correct log.metrics", other,
				    strerror(errno));
		} else if (!add && rename(path, other) != 0) {
			om_die("metrics", "%s: cannot be moved to %s: %s", path, other,
			    strerror(errno));
		}
		fclose(f);
		free(other);
	}
	/* without waiting for who reads a pipe */
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
	if (fd < 0 && errno == ENXIO)
		om_die("metrics", "%s: is a pipe that nobody reads; correct log.metrics", path);
	if (fd < 0 || fcntl(fd, F_SETFL, O_APPEND) != 0 || !(f = fdopen(fd, "a")))
		om_die("metrics", "%s: %s; correct log.metrics", path, strerror(errno));
	setvbuf(f, NULL, _IOFBF, 1 << 16); /* one write a line */
	return f;
}

/* A number of the line that is being written, and of TensorBoard's step, there under l->of. */
static void
event(struct om_log *l, const char *key, double x)
{
	char tag[128];

	if (!l->events.file)
		return;
	snprintf(tag, sizeof tag, "%s%s", l->of, key);
	om_events_number(&l->events, tag, x);
}

/* What a reader of the line gets, as a resumed run does. */
static double
printed(double x)
{
	char text[32];

	snprintf(text, sizeof text, "%.10g", x);
	return strtod(text, NULL);
}

/* What stands between two of the line's, or of an object's in it. */
static const char *
comma(struct om_log *l)
{
	const char *s = l->inside ? "" : ", ";

	l->inside = false;
	return s;
}

static void
number(struct om_log *l, const char *key, double x)
{
	if (isfinite(x))
		fprintf(l->metrics, "%s\"%s\": %.10g", comma(l), key, x);
	else /* JSON has no NaN and no infinity */
		fprintf(l->metrics, "%s\"%s\": null", comma(l), key);
	event(l, key, x);
}

static void
whole(struct om_log *l, const char *key, uint64_t x)
{
	fprintf(l->metrics, "%s\"%s\": %llu", comma(l), key, (unsigned long long)x);
	event(l, key, (double)x);
}

/* A kind of MoE layer of a stage. */
struct kind {
	uint32_t stage, i;
	const struct om_moe *moe;
};

static const struct om_model *
model_of(const struct om_log *l, uint32_t stage)
{
	return l->m - l->m->stage + stage;
}

/* Steps through those of all stages; start with 0s. */
static bool
next_kind(const struct om_log *l, struct kind *k)
{
	for (k->i += k->moe != NULL; k->stage < om_size(OM_PIPELINE); k->stage++, k->i = 0)
		if (k->i < model_of(l, k->stage)->nmoe) {
			k->moe = &model_of(l, k->stage)->moe[k->i];
			return true;
		}
	return false;
}

/* What lies at an offset of the stage's arena that is among its statistics. */
static const void *
statistics(const struct om_log *l, const struct kind *k, uint64_t off)
{
	return om_stat(model_of(l, k->stage), l->stage[k->stage], off);
}

/* Rank 0 gets each stage's statistics, which are the same on all of its ranks. */
static void
gather_statistics(struct om_log *l, const struct om_result *own)
{
	const uint32_t stage = om_rank(OM_PIPELINE), stages = om_size(OM_PIPELINE);
	struct om_piece out = { l->stage[stage]->stat, l->m->stat_bytes, 0 }, *in;

	if (om_rank(OM_DATA))
		return;
	memcpy(out.p, own->stat, out.bytes);
	in = om_alloc(stages, sizeof *in);
	for (uint32_t s = 1; s < stages; s++)
		in[s - 1] = (struct om_piece){ l->stage[s]->stat, model_of(l, s)->stat_bytes, s };
	if (stages > 1)
		om_exchange(
		    OM_PIPELINE, "statistics", &out, stage != 0, in, stage ? 0 : stages - 1);
	free(in);
}

/* Mean over the layers of all kinds and microbatches, and the weighted sum that the step minimised.
 */
static double
auxiliary(
    const struct om_log *l, const struct om_result *r, const struct om_told *told, double mean[2])
{
	double total =
	    l->ce + l->m->head_z_loss * om_stat_f64(l->m, r, l->m->loss_off + 8) / told->share;
	double layers = 0;
	const double microbatches = (double)(told->sequences / l->m->micro);

	mean[0] = mean[1] = 0;
	for (struct kind k = { 0 }; next_kind(l, &k);)
		for (uint32_t j = 0; j < k.moe->nlayers; j++, layers++)
			for (int of = 0; of < 2; of++) {
				uint64_t at = k.moe->aux + j * k.moe->aux_stride + 8 * (uint64_t)of;
				double x = *(const double *)statistics(l, &k, at) / microbatches;

				mean[of] += x;
				total += (of ? k.moe->z_loss : k.moe->load_balance) * x;
			}
	for (int k = 0; layers > 0 && k < 2; k++)
		mean[k] /= layers;
	return total;
}

/* A layer of experts: the j-th of its kind. */
struct row {
	struct kind k;
	uint32_t j, layer;
};

static int
by_layer(const void *a, const void *b)
{
	const struct row *x = a, *y = b;

	return x->layer < y->layer ? -1 : x->layer > y->layer;
}

/* All of them in the order of the model, whichever stages they are on. free() it. */
static struct row *
rows_of(const struct om_log *l, uint32_t *n)
{
	struct row *row;

	*n = 0;
	for (struct kind k = { 0 }; next_kind(l, &k);)
		*n += k.moe->nlayers;
	row = om_alloc(*n, sizeof *row);
	*n = 0;
	for (struct kind k = { 0 }; next_kind(l, &k);)
		for (uint32_t j = 0; j < k.moe->nlayers; j++)
			row[(*n)++] = (struct row){ k, j, k.moe->layer ? k.moe->layer[j] : j };
	qsort(row, *n, sizeof *row, by_layer);
	return row;
}

/* Of a layer: routes that a rank had no rows for, and all; NULL: it has rows for every one. */
static const int64_t *
cut_of(const struct om_log *l, const struct row *r)
{
	const struct om_moe *moe = r->k.moe;

	return moe->cut ? statistics(l, &r->k, moe->cut + r->j * moe->cut_stride) : NULL;
}

/* loads: of all experts too, which every log.every-th line has. */
static void
metrics_moe(struct om_log *l, bool loads)
{
	uint32_t n;
	struct row *row = rows_of(l, &n);

	fprintf(l->metrics, ", \"moe\": [");
	for (const struct row *r = row; r < row + n; r++) {
		const struct om_moe *moe = r->k.moe;
		const int64_t *load = statistics(l, &r->k, moe->load + r->j * moe->load_stride);
		const int64_t *cut = cut_of(l, r);
		const int64_t *sat =
		    moe->sat ? statistics(l, &r->k, moe->sat + r->j * moe->sat_stride) : NULL;
		const uint32_t ranks = om_size(OM_EXPERT), each = moe->experts / ranks;
		int64_t sum = 0, most = 0, rank = 0, busiest = 0;
		double entropy = 0;
		uint32_t dead = 0;

		for (uint32_t e = 0; e < moe->experts; e++) {
			sum += load[e];
			most = load[e] > most ? load[e] : most;
			dead += load[e] == 0;
			rank = e % each ? rank + load[e] : load[e];
			busiest = rank > busiest ? rank : busiest;
		}
		for (uint32_t e = 0; e < moe->experts; e++)
			if (load[e])
				entropy -= (double)load[e] / (double)sum *
					   log((double)load[e] / (double)sum);
		fprintf(l->metrics, "%s{\"layer\": %u", r > row ? ", " : "", r->layer);
		snprintf(l->of, sizeof l->of, "layer %02u/", r->layer);
		number(l, "max_load", (double)most * moe->experts / (double)sum);
		if (ranks > 1)
			number(l, "max_rank", (double)busiest * ranks / (double)sum);
		number(l, "entropy", entropy / log(moe->experts > 1 ? moe->experts : 2));
		whole(l, "dead", dead);
		if (cut)
			number(l, "cut", (double)cut[0] / (double)cut[1]);
		if (sat)
			number(l, "saturated", sat[1] ? (double)sat[0] / (double)sat[1] : 0);
		for (uint32_t e = 0; loads && e < moe->experts; e++)
			fprintf(
			    l->metrics, "%s%lld", e ? ", " : ", \"load\": [", (long long)load[e]);
		fprintf(l->metrics, loads ? "]}" : "}");
	}
	fprintf(l->metrics, "]");
	*l->of = 0;
	free(row);
}

/* Tokens that the run has had of each source of a mix. */
static void
metrics_sources(struct om_log *l)
{
	const struct om_data *d = l->data;

	fprintf(l->metrics, ", \"sources\": {");
	snprintf(l->of, sizeof l->of, "sources/");
	for (uint32_t i = 0; i < d->nsources; i++) {
		uint64_t tokens = d->seen[i] * d->seq;

		fprintf(l->metrics, "%s\"%s\": %llu", i ? ", " : "", d->source[i].name,
		    (unsigned long long)tokens);
		event(l, d->source[i].name, (double)tokens);
	}
	fprintf(l->metrics, "}");
	*l->of = 0;
}

/*
 * Seconds that each rank was at work in the step and not waiting for another: the longest is of the
 * one that others waited for.
 */
static void
metrics_ranks(struct om_log *l, const int64_t *busy)
{
	const uint32_t ranks = om_size(OM_WORLD);
	int64_t sum = 0, most = 0;

	fprintf(l->metrics, ", \"ranks\": [");
	for (uint32_t i = 0; i < ranks; i++) {
		fprintf(l->metrics, "%s%.4g", i ? ", " : "", 1e-6 * (double)busy[i]);
		sum += busy[i];
		most = busy[i] > most ? busy[i] : most;
	}
	fprintf(l->metrics, "]");
	number(l, "slowest", (double)most * ranks / (double)(sum ? sum : 1));
}

static void
metrics_begin(struct om_log *l, uint64_t step)
{
	fprintf(l->metrics, "{\"step\": %llu", (unsigned long long)step);
}

static void
metrics_end(struct om_log *l, uint64_t step)
{
	fprintf(l->metrics, "}\n");
	if (fflush(l->metrics) != 0)
		om_die("metrics", "%s: %s; free some space", l->path, strerror(errno));
	if (l->events.file)
		om_events_step(&l->events, step);
}

static void
metrics_step(struct om_log *l, const struct om_result *x, uint64_t step, const struct om_told *told)
{
	const uint64_t tokens = l->tokens;
	double mean[2], total = auxiliary(l, x, told, mean);
	const double norm = sqrt(x->ctl[OM_NORM2]) / told->share;
	double flops =
	    ((double)(tokens * l->m->flops_token) - told->spared * (double)om_size(OM_DATA)) /
	    told->took / (double)om_size(OM_WORLD);
	const bool moe = next_kind(l, &(struct kind){ 0 });

	metrics_begin(l, step);
	if (l->first && step == l->first + 1 && !l->skip->back)
		fprintf(l->metrics, ", \"resumed\": %llu", (unsigned long long)l->first);
	if (step == l->first + 1 && *om_comm_library())
		fprintf(l->metrics, ", \"sums\": \"%s\"", om_comm_library());
	whole(l, "tokens", told->all * l->m->seq);
	if (told->ramps)
		whole(l, "batch", told->sequences);
	number(l, "loss", l->ce);
	number(l, "head_z", om_stat_f64(l->m, x, l->m->loss_off + 8) / told->share);
	if (moe) {
		number(l, "load_balance", mean[0]);
		number(l, "z", mean[1]);
	}
	number(l, "total", total);
	number(l, "grad_norm", norm);
	number(l, "lr", told->lr);
	number(l, "tokens_per_s", (double)tokens / told->took);
	number(l, "data_wait", told->waited);
	number(l, "tflops", 1e-12 * flops); /* of a device */
	if (l->m->peak > 0)
		number(l, "mfu", flops / l->m->peak);
	number(l, "spikes", om_spike_step(&l->spike, (double[]){ printed(l->ce), printed(norm) }));
	if (told->not_finite)
		fprintf(l->metrics, ", \"not_finite\": \"%s\"", told->not_finite);
	if (told->masked >= 0)
		number(l, "masked", told->masked);
	if (told->repeated >= 0)
		number(l, "repeated", told->repeated);
	if (l->skip->sigma > 0) {
		whole(l, "skipped", l->skip->row > 0);
		whole(l, "skipped_total", l->skip->total);
	}
	if (l->skip->back) {
		whole(l, "rollbacks", l->skip->back);
		whole(l, "left_out", l->skip->left);
	}
	if (om_size(OM_WORLD) > 1 && om_steps_most() == 1) /* a GPU is at work beside the host */
		metrics_ranks(l, told->busy);
	if (l->data->mix)
		metrics_sources(l);
	if (moe)
		metrics_moe(l, step % l->every == 0);
	metrics_end(l, step);
}

void
om_log_sync(struct om_log *l)
{
	FILE *const file[] = { l->metrics, l->events.file };

	for (size_t i = 0; i < OM_LEN(file); i++)
		if (file[i] && fsync(fileno(file[i])) != 0 && errno != EINVAL &&
		    errno != EROFS) /* a pipe has no disk */
			om_die("metrics", "%s: %s; free some space", i ? l->events.path : l->path,
			    strerror(errno));
}

/* ---- console --------------------------------------------------------------------------------- */

static bool bar_shown;

void
om_log_clear(void)
{
	if (bar_shown) {
		printf("\r\033[K");
		fflush(stdout);
	}
	bar_shown = false;
}

/* Adds up what the step's routers could not place. */
static void
count_cut(struct om_log *l)
{
	uint32_t n;
	struct row *row = rows_of(l, &n);

	for (uint32_t i = 0; i < n; i++) {
		const int64_t *cut = cut_of(l, &row[i]);

		for (int j = 0; cut && j < 2; j++)
			l->cut[j] += (double)cut[j];
	}
	free(row);
}

/* How many steps were skipped, "" where none was. */
static const char *
skipped_text(const struct om_log *l, char text[32])
{
	snprintf(
	    text, 32, l->skip->total ? "  %llu skipped" : "", (unsigned long long)l->skip->total);
	return text;
}

static void
bar_draw(struct om_log *l, uint64_t step, double left)
{
	struct winsize size = { 0, 0, 0, 0 };
	char head[64], tail[160], skipped[32];
	int width, room, blocks;

	ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
	width = l->width ? l->width : size.ws_col ? size.ws_col : 80;
	snprintf(head, sizeof head, "step %llu/%llu ", (unsigned long long)step,
	    (unsigned long long)l->steps);
	snprintf(tail, sizeof tail, " loss %s%s  %s tok/s  %s  %s left", om_number(l->ce, ".4f"),
	    skipped_text(l, skipped), om_commas((uint64_t)((double)l->tokens / l->pace)),
	    om_clock(om_now() - l->start), om_clock(left));
	room = width - 1 - (int)strlen(head) - (int)strlen(tail) - 2;
	blocks = om_bar_blocks(&l->bar, false);
	blocks = room - blocks >= 4 ? blocks : 0;
	room = room - blocks > 40 ? 40 : room - blocks;
	printf("\r%.*s", width - 1, head);
	if (room >= 4) /* narrower, the numbers matter more */
		om_bar_print(&l->bar, room, (double)step / (double)l->steps);
	if (blocks)
		om_bar_blocks(&l->bar, true);
	room = width - 1 - (int)strlen(head);
	printf("%.*s\033[K", room > 0 ? room : 0, tail);
	fflush(stdout);
	bar_shown = true;
}

void
om_log_open(struct om_log *l, const struct om_model *m, const struct om_data *data,
    const struct om_skip *skip, const struct om_conf *c, uint64_t step)
{
	const char *term = getenv("TERM"), *width = getenv("OM_TERMINAL");

	*l = (struct om_log){ .m = m,
		.data = data,
		.skip = skip,
		.path = c->metrics,
		.every = c->log_every,
		.steps = c->steps,
		.first = step,
		.start = om_now() };
	om_bar_open(&l->bar);
	/* mpirun gives ranks a terminal, whatever its own output is; who started it knows that */
	if (width)
		l->width = atoi(width);
	l->live = (om_size(OM_WORLD) == 1 ? isatty(STDOUT_FILENO) : l->width > 0) &&
		  !om_rank(OM_WORLD) && (!term || strcmp(term, "dumb") != 0);
	for (struct kind k = { 0 }; next_kind(l, &k);)
		l->cuts = l->cuts || k.moe->cut;
	l->stage = om_alloc(om_size(OM_PIPELINE), sizeof *l->stage);
	for (uint32_t s = 0; s < om_size(OM_PIPELINE); s++)
		l->stage[s] = om_alloc(1, sizeof **l->stage + model_of(l, s)->stat_bytes);
	l->wanted = *c->metrics || *c->tensorboard;
	if (l->wanted && !om_rank(OM_WORLD))
		l->metrics = metrics_open(l, *c->metrics ? c->metrics : "/dev/null", step, !skip);
	if (*c->tensorboard && !om_rank(OM_WORLD))
		om_events_open(&l->events, c->tensorboard, skip ? step : OM_NO_STEP);
	om_err_before(om_log_clear);
}

/* A line that stays. */
static void
line(struct om_log *l, const struct om_result *x, uint64_t step, const struct om_told *told,
    double left)
{
	int digits = snprintf(NULL, 0, "%llu", (unsigned long long)l->steps);
	char skipped[32], cut[40] = "";

	if (l->cut[0] > 0)
		snprintf(cut, sizeof cut, "  %.3g%% of routes cut", 100 * l->cut[0] / l->cut[1]);
	l->cut[0] = l->cut[1] = 0;
	om_log_clear();
	printf("step %*llu/%llu  loss %s  lr %.2e  norm %s%s%s  %s tok/s  %s left%s\n", digits,
	    (unsigned long long)step, (unsigned long long)l->steps, om_number(l->ce, ".4f"),
	    told->lr, om_number(sqrt(x->ctl[OM_NORM2]) / told->share, ".3g"), cut,
	    skipped_text(l, skipped), om_commas((uint64_t)((double)l->tokens / l->pace)),
	    om_took(left), l->skip->row ? "  (this step was skipped)" : "");
	fflush(stdout);
}

void
om_log_step(struct om_log *l, const struct om_result *x, uint64_t step, const struct om_told *told)
{
	const bool ends = step == l->steps || step == l->first + 1 || l->skip->row;
	double now = om_now(), left;

	/* the mean of the first steps, then a moving one */
	l->pace +=
	    (told->took - l->pace) / (step - l->first < 10 ? (double)(step - l->first) : 10.0);
	left = l->pace * (double)(l->steps - step);
	l->ce = om_stat_f64(l->m, x, l->m->loss_off) / told->share;
	om_bar_loss(&l->bar, l->ce);
	l->tokens = told->sequences * l->m->seq;
	if (l->data->mix && !om_rank(OM_WORLD))
		om_data_count(l->data, told->place, told->sequences);
	if (l->wanted || l->cuts)
		gather_statistics(l, x);
	if (l->cuts && !om_rank(OM_WORLD))
		count_cut(l);
	if (l->metrics)
		metrics_step(l, x, step, told);
	/* a terminal is for people, who read a line a second at most */
	if (ends || (step % l->every == 0 && (!l->live || now - l->last >= 1))) {
		line(l, x, step, told, left);
		l->last = now;
	}
	if (l->live && (now - l->drawn >= 0.1 || ends) && step < l->steps) {
		bar_draw(l, step, left);
		l->drawn = now;
	}
}

/* A line of the console. */
static void
line_eval(uint64_t step, const struct om_score *s)
{
	printf("eval: step %s, %s%s", om_commas(step), s->set ? s->set : "", s->set ? ": " : "");
	if (s->questions) {
		printf("accuracy %s, by tokens %s", om_number(s->right[OM_BY_NOTHING], ".4f"),
		    om_number(s->right[OM_BY_TOKENS], ".4f"));
		if (s->bytes)
			printf(", by bytes %s", om_number(s->right[OM_BY_BYTES], ".4f"));
		printf(", loss %s", om_number(s->loss, ".4f"));
	} else {
		printf("loss %s, perplexity %s", om_number(s->loss, ".4f"),
		    om_number(exp(s->loss), ".4g"));
	}
	if (s->bytes)
		printf(", %s bits a byte", om_number(s->bits, ".4f"));
	printf(", %s in %s\n",
	    s->questions ? om_count(s->questions, "question") : om_count(s->tokens, "token"),
	    om_took(s->seconds));
}

/*
 * The numbers of a set, named "eval_loss" and such in the line itself, or "loss" in an object of
 * its own. There a loss comes first: no line but a step's has it behind a comma.
 */
static void
metrics_eval(struct om_log *l, const struct om_score *s)
{
	const struct {
		const char *name;
		bool is;
		double x;
	} of[] = {
		{ "loss", true, s->loss },
		{ "perplexity", !s->questions, exp(s->loss) },
		{ "accuracy", s->questions, s->right[OM_BY_NOTHING] },
		{ "accuracy_tokens", s->questions, s->right[OM_BY_TOKENS] },
		{ "accuracy_bytes", s->questions && s->bytes, s->right[OM_BY_BYTES] },
		{ "probability", s->questions, s->probability },
		{ "bits_per_byte", s->bytes, s->bits },
	};

	for (size_t i = 0; i < OM_LEN(of); i++) {
		char name[32];

		snprintf(name, sizeof name, "%s%s", s->set ? "" : "eval_", of[i].name);
		if (of[i].is)
			number(l, name, of[i].x);
	}
	if (s->questions)
		whole(l, "questions", s->questions);
	else
		whole(l, s->set ? "tokens" : "eval_tokens", s->tokens);
}

void
om_log_eval(struct om_log *l, uint64_t step, const struct om_score *const *score, uint32_t n)
{
	om_log_clear();
	for (uint32_t i = 0; i < n; i++)
		line_eval(step, score[i]);
	fflush(stdout);
	if (!l->metrics)
		return;
	metrics_begin(l, step);
	for (uint32_t i = 0; i < n; i++) {
		const struct om_score *s = score[i];
		const bool first = i == 0 || !score[i - 1]->set;

		if (s->set) {
			fprintf(l->metrics, "%s\"%s\": {", first ? ", \"eval\": {" : ", ", s->set);
			snprintf(l->of, sizeof l->of, "eval/%s/", s->set);
			l->inside = true;
		}
		metrics_eval(l, s);
		if (s->set)
			fprintf(l->metrics, "}%s", i + 1 < n ? "" : "}");
		*l->of = 0;
	}
	metrics_end(l, step);
}

void
om_log_close(struct om_log *l)
{
	om_log_clear();
	om_err_before(NULL);
	if (l->metrics)
		fclose(l->metrics);
	if (l->events.file)
		om_events_close(&l->events);
	for (uint32_t s = 0; s < om_size(OM_PIPELINE); s++)
		free(l->stage[s]);
	free(l->stage);
}
