/*
 * Loading a checkpoint: index.json first, which must be whole, of this model and of these data;
 * then each tensor against its shape and checksum. Any error ends the process with nothing on disk
 * changed.
 *
 * The first rank chooses the checkpoint, and the others go on when it has found nothing wrong with
 * its index. Each then reads what is its own, from whichever slices there are.
 */
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt.h"

enum { CHUNK = 1 << 22 };

static void
check_data(struct om_index *l)
{
	const struct om_data *d = l->k->data;
	const json_t *data = json_object_get(l->doc, "data");
	char seed[32], tokens[32], files[32], crc[32], number[32];
	const struct {
		const char *key, *name, *now;
	} fact[] = {
		{ "seed", "seed", seed },
		{ "order", "data.order", om_key_word(OM_ORDERS, d->order) },
		{ "mix", "a data.mix of", d->mix ? d->mix : "none" },
		{ "tokens", "a token count of", tokens },
		{ "files", "a file count of", files },
		{ "crc32c", "a data checksum of", crc },
	};

	if (!data) /* imported weights have seen none, the first run's are theirs */
		return;
	snprintf(seed, sizeof seed, "%llu", (unsigned long long)d->seed);
	snprintf(tokens, sizeof tokens, "%llu", (unsigned long long)d->tokens);
	snprintf(files, sizeof files, "%u", d->files);
	snprintf(crc, sizeof crc, "%08x", d->crc);
	for (size_t i = 0; i < OM_LEN(fact); i++) {
		const char *then = json_string_value(json_object_get(data, fact[i].key));

		if (!then && strcmp(fact[i].key, "mix") == 0)
			then = "none";
		if (!then) {
			snprintf(number, sizeof number, "%llu",
			    (unsigned long long)om_index_whole(l, data, fact[i].key));
			then = number;
		}
		if (strcmp(fact[i].now, then) != 0)
			om_die("checkpoint",
			    "%s was trained with %s %s, now it is %s; restore that, or go "
			    "on with "
			    "other "
			    "data by checkpoint.ignore_data=true",
			    l->path, fact[i].name, then, fact[i].now);
	}
}

/* What the run has had of each source, if its mix is the same. */
static void
load_seen(struct om_index *l)
{
	const struct om_data *d = l->k->data;
	const json_t *data = json_object_get(l->doc, "data"), *seen = json_object_get(data, "seen");
	const char *mix = json_string_value(json_object_get(data, "mix"));

	for (uint32_t i = 0; d->mix && i < d->nsources; i++) {
		d->seen[i] = 0;
		if (!mix || strcmp(mix, d->mix) != 0)
			continue;
		d->seen[i] = om_json_whole(json_array_get(seen, i));
		if (d->seen[i] == UINT64_MAX)
			om_index_bad(
			    l, "index.json", "has no whole number of source %u in \"seen\"", i);
	}
}

/* Of which row an entry takes something; each file is opened once. */
struct take {
	const char *file;
	const struct om_entry *e;
	const struct om_index_row *row;
};

static int
by_file(const void *a, const void *b)
{
	const struct take *x = a, *y = b;
	int file = strcmp(x->file, y->file);

	return file           ? file
	       : x->e != y->e ? (x->e < y->e ? -1 : 1)
			      : (x->row < y->row ? -1 : x->row > y->row);
}

/* Puts elements [begin, end) of a tensor, of the file's dtype, as far as they are the entry's. */
static void
put(const struct om_model *m, unsigned char *arena, const struct om_entry *e, uint64_t begin,
    uint64_t end, const unsigned char *x, const char *dtype)
{
	uint64_t first = begin > e->begin ? begin : e->begin, beyond = end < e->end ? end : e->end;
	uint64_t n = beyond - first, off = e->off + (first - e->begin) * e->size;
	size_t size = om_index_size(dtype);
	float *wide;

	if (first >= beyond)
		return;
	x += (first - begin) * size;
	if (e->file == 0) {
		om_put_weights(m, arena, e->p, e->rep, e->first + (first - e->begin), x, n);
	} else if (strcmp(dtype, e->t.dtype) == 0 && size == e->size) {
		om_put(arena, off, x, n * size);
	} else {
		wide = om_alloc(n, sizeof *wide);
		om_st_floats(dtype, x, n, wide);
		if (strcmp(e->t.dtype, "BF16") == 0)
			om_put_bf16(arena, off, wide, n, e->size);
		else
			om_put(arena, off, wide, n * sizeof *wide);
		free(wide);
	}
}

/* Reads all of a row, for its checksum's sake, and puts what the entry has of it. */
static void
take_row(struct om_index *l, unsigned char *arena, const struct take *take, const struct om_st *st,
    unsigned char *buf)
{
	const struct om_entry *e = take->e;
	const struct om_index_row *row = take->row;
	const struct om_st_tensor *t = om_index_tensor(l, row, e, st);
	const char *dtype = om_index_text(l, row->map, "dtype");
	size_t size = om_index_size(dtype);
	uint64_t at = row->begin, offset = st->data + t->begin;
	uint32_t crc = 0;

	for (size_t some; at < row->end; at += some, offset += some * size) {
		some = row->end - at < CHUNK / size ? (size_t)(row->end - at) : CHUNK / size;
		if (!om_pread_all(st->fd, buf, some * size, offset))
			om_index_bad(l, take->file, "tensor %s: %s", row->name,
			    errno ? strerror(errno) : "truncated");
		crc = om_crc32c(crc, buf, some * size);
		put(l->k->m, arena, e, at, at + some, buf, dtype);
	}
	om_index_sum(l, row, crc);
}

static void
load_tensors(struct om_index *l, unsigned char *arena, const struct om_entry *e, uint32_t n)
{
	struct take *take = om_alloc((size_t)n + l->n, sizeof *take);
	unsigned char *buf = om_alloc(CHUNK, 1);
	struct om_st st = { .fd = -1 };
	uint32_t used = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (!l->k->data && e[i].file && !(l->k->average && om_ckpt_is_average(e[i].t.name)))
			continue;
		for (const struct om_index_row *row = om_index_find(l, e[i].t.name); row;
		     row = om_index_next(l, row))
			if (row->begin < e[i].end && e[i].begin < row->end)
				take[used++] =
				    (struct take){ om_index_text(l, row->map, "file"), &e[i], row };
	}
	qsort(take, used, sizeof *take, by_file);
	for (uint32_t i = 0; i < used; i++) {
		const char *file = take[i].file, *why;

		if (!i || strcmp(file, take[i - 1].file) != 0) {
			char *name = om_text("%s/%s", l->path, file);

			om_st_close(&st);
			if (strchr(file, '/') || (why = om_st_open(&st, name)))
				om_index_bad(l, file, "%s",
				    strchr(file, '/') ? "is outside of the checkpoint" : why);
			free(name);
		}
		take_row(l, arena, &take[i], &st, buf);
	}
	om_st_close(&st);
	free(buf);
	free(take);
}

/* Says so where moments are converted. */
static void
tell_moments(struct om_index *l, const struct om_entry *e, uint32_t n)
{
	const char *dtype;

	while (n && !e->file)
		e++, n--;
	dtype = n ? om_index_text(l, om_index_find(l, e->t.name)->map, "dtype") : NULL;
	if (dtype && strcmp(dtype, e->t.dtype) != 0)
		printf("checkpoint: %s has moments in %s, this trainer in %s: each becomes "
		       "the "
		       "nearest\n",
		    l->path, dtype, e->t.dtype);
}

void
om_weights_gather(const struct om_model *m, unsigned char *arena)
{
	for (uint32_t i = 0; i < m->nbuckets; i++) {
		const struct om_bucket *b = &m->bucket[i];

		for (uint64_t l = 0, bytes = b->elems * m->weight_size; l < b->nlayers; l++)
			om_all_gather(b->group, "weights", arena + b->weight + l * bytes, bytes);
	}
}

/*
 * Steps after the one resumed from belong to a run that is given up: they move aside, and stay
 * there where it was a user who gave it up.
 */
static void
set_aside(struct om_ckpt *k, uint64_t step)
{
	uint64_t later;

	while (k->dir && (later = om_ckpt_newest_below(k->dir, OM_NO_STEP, NULL)) != OM_NO_STEP &&
	       later > step) {
		char *from = om_ckpt_step_path(k->dir, "", later);
		char *aside = om_ckpt_step_path(k->dir, k->rollback ? "bad-" : "old-", later), *to;

		if (k->rollback) /* one of the same step, of a rollback before this one */
			om_ckpt_remove(aside);
		to = om_free_name(aside, "");

		if (rename(from, to) != 0)
			om_die("checkpoint", "%s: cannot be moved to %s: %s", from, to,
			    strerror(errno));
		printf(
		    "checkpoint: %s is later than the one resumed from; moved to %s\n", from, to);
		free(from);
		free(aside);
		free(to);
	}
}

/* What SkipStep had seen. Checkpoints of before it, and of runs with it off, have no windows. */
static void
load_skip(struct om_index *l)
{
	static const char *const name[] = { "loss", "norm" };
	struct om_skip *s = l->k->skip;
	const json_t *map = json_object_get(l->doc, "skip_step");
	size_t n[2];

	if (!map)
		return;
	s->total = om_index_whole(l, map, "skipped");
	s->row = om_index_whole(l, map, "in_a_row");
	s->fresh = json_object_get(map, "updates_before_moments")
		       ? om_index_whole(l, map, "updates_before_moments")
		       : 0;
	if (json_object_get(map, "rollbacks")) {
		s->back = om_index_whole(l, map, "rollbacks");
		s->left = om_index_whole(l, map, "left_out");
		/* those of steps of one size did not say it */
		s->left_sequences = json_object_get(map, "left_sequences")
					? om_index_whole(l, map, "left_sequences")
					: s->left * l->k->m->global;
	}
	for (int i = 0; i < 2; i++) {
		const json_t *list = json_object_get(map, name[i]), *x;

		if (!json_is_array(list))
			om_index_bad(l, "index.json", "has no \"%s\"", name[i]);
		n[i] = json_array_size(list);
		if (n[i] != n[0])
			om_index_bad(l, "index.json", "has %zu losses and %zu norms", n[0], n[i]);
		s->n = s->sigma > 0 ? (uint32_t)(n[i] < s->window ? n[i] : s->window) : 0;
		for (uint32_t j = 0; j < s->n; j++) { /* the newest, if the window is shorter now */
			x = json_array_get(list, n[i] - s->n + j);
			if (!json_is_number(x))
				om_index_bad(
				    l, "index.json", "has what is no number in \"%s\"", name[i]);
			s->last[i][j] = json_number_value(x);
		}
	}
}

/* The steps that were done have read the data that they would read by run.yaml. */
static void
check_steps(struct om_index *l, uint64_t step)
{
	const struct om_steps *plan = l->k->data->steps;
	const json_t *data = json_object_get(l->doc, "data"), *skipped, *range;
	const uint64_t next = data ? om_index_whole(l, data, "next_sequence") : 0,
		       all = data ? om_steps_all(plan, step) : 0,
		       left = l->k->skip ? l->k->skip->left_sequences : 0;
	char *text = om_text("%s", ""), *now;
	size_t i;

	if (next != all)
		om_die("checkpoint",
		    "%s has read %llu sequences in %llu steps, by batch.sizes they are "
		    "%llu; leave "
		    "the sizes of steps that are done as they were, or set "
		    "checkpoint.ignore_data",
		    l->path, (unsigned long long)next, (unsigned long long)step,
		    (unsigned long long)all);
	skipped = json_object_get(data, "skipped");
	json_array_foreach((json_t *)skipped, i, range)
	{
		char *more = om_text("%s%s[%llu, %llu]", text, i ? ", " : "",
		    (unsigned long long)om_json_whole(json_array_get(range, 0)),
		    (unsigned long long)om_json_whole(json_array_get(range, 1)));

		free(text);
		text = more;
	}
	now = om_steps_gaps(plan, next + left);
	if (strcmp(text, now) != 0)
		om_die("checkpoint",
		    "%s has left out sequences %s of its data, by data.skip it would have "
		    "left out "
		    "%s; what is skipped has to come after step %llu: resume from an older "
		    "checkpoint, or correct data.skip",
		    l->path, *text ? text : "[]", *now ? now : "[]", (unsigned long long)step);
	free(text);
	free(now);
}

/* Everything that the index must say; gives the step. */
static uint64_t
check(struct om_index *l, const struct om_conf *c, const char *index, size_t size,
    const struct om_entry *e, uint32_t n, const uint32_t all[3])
{
	const struct om_ckpt *k = l->k;
	const char *base;
	char other[256];
	uint64_t step;

	om_index_parse(l, index, size);
	om_index_check(l, e, n, all, other, sizeof other);
	if (k->data && !c->ignore_data)
		check_data(l);
	if (k->data)
		load_seen(l);
	step = om_index_whole(l, l->doc, "step");
	base = strrchr(l->path, '/') ? strrchr(l->path, '/') + 1 : l->path;
	if (om_ckpt_step_of(base) != OM_NO_STEP && om_ckpt_step_of(base) != step)
		om_index_bad(l, "index.json", "is of step %llu, its directory is not",
		    (unsigned long long)step);
	if (k->data && step > c->steps)
		om_die("checkpoint",
		    "%s is at step %llu, past the run's end: steps is %llu; raise steps", l->path,
		    (unsigned long long)step, (unsigned long long)c->steps);
	if (k->skip)
		load_skip(l);
	if (k->data && !c->ignore_data)
		check_steps(l, step);
	if (k->skip && l->fresh)
		k->skip->fresh = step - k->skip->total;
	if (k->data && l->fresh && !om_rank(OM_WORLD))
		printf("checkpoint: %s is of another optimizer, whose moments are dropped "
		       "(%s): all "
		       "begin at zero\n",
		    l->path, other);
	return step;
}

/* A text of the first rank's on all of them; free() it, on the first it is the same. */
static char *
share(char *s, size_t *n)
{
	uint64_t size = s ? *n : UINT64_MAX;

	om_bcast("checkpoint", &size, sizeof size);
	if (size == UINT64_MAX)
		return NULL;
	if (om_rank(OM_WORLD))
		s = om_alloc((size_t)size + 1, 1);
	om_bcast("checkpoint", s, size);
	*n = (size_t)size;
	return s;
}

/* Loads all of the checkpoint, or of one that is not trained on the weights; gives its step. */
static uint64_t
load(struct om_index *l, const struct om_conf *c, unsigned char *arena)
{
	const struct om_ckpt *k = l->k;
	char *index = NULL;
	size_t size = 0;
	uint32_t n, used = 0, all[3];
	struct om_entry *e = om_ckpt_entries(k->m, OM_TO_LOAD, &n);
	struct om_entry *some = om_alloc(n, sizeof *some);
	uint64_t step = 0;

	om_ckpt_count(k->m, e, n, all);
	if (!om_rank(OM_WORLD)) {
		index = om_index_read(l, &size);
		step = check(l, c, index, size, e, n, all);
	}
	index = share(index, &size);
	if (om_rank(OM_WORLD))
		step = check(l, c, index, size, e, n, all);
	if (l->fresh)
		om_clear(arena + k->m->state_off, k->m->state_bytes);
	else if (k->data)
		tell_moments(l, e, n);
	if (k->average && !l->averages)
		om_die("checkpoint",
		    "%s has no averages of its weights; set eval.of to weights, or "
		    "evaluate one of "
		    "a trainer that keeps them",
		    l->path);
	for (uint32_t i = 0; i < n; i++)
		if (om_index_goes_on(l, e[i].t.name))
			some[used++] = e[i];
	load_tensors(l, arena, some, used);
	free(some);
	om_weights_gather(k->m, arena);
	if (k->data && k->m->average_off && !l->averages) {
		om_average_begin(k->m, arena);
		if (!om_rank(OM_WORLD))
			printf(
			    "checkpoint: %s has no averages: they begin as its weights\n", l->path);
	}
	om_barrier("checkpoint"); /* no rank has found damage */
	om_index_free(l);
	free(index);
	om_ckpt_entries_free(e, n);
	return step;
}

/* What to do about a damaged one. */
static char *
remedy_new(const struct om_ckpt *k, bool automatic)
{
	uint64_t before = OM_NO_STEP;
	char *path, *text;

	if (automatic)
		before = om_ckpt_newest_below(
		    k->dir, om_ckpt_newest_below(k->dir, OM_NO_STEP, NULL), NULL);
	if (before == OM_NO_STEP)
		return om_text(
		    "restore it%s", k->data ? ", or start anew with another checkpoint.dir" : "");
	path = om_ckpt_step_path(k->dir, "", before);
	text = om_text(k->data ? "resume from the one before it by checkpoint.resume=%s"
			       : "use the one before it, %s",
	    path);
	free(path);
	return text;
}

/* A path must be that of one checkpoint, if maybe a damaged one; how: how another is named. */
static void
check_path(const char *path, const char *key, const char *how)
{
	const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
	uint64_t newest = om_ckpt_newest_below(path, OM_NO_STEP, NULL);

	if (om_ckpt_is_one(path))
		return;
	if (newest != OM_NO_STEP)
		om_die("checkpoint",
		    "%s is a folder of checkpoints, not one; the newest in it is %s=%s", path, key,
		    om_ckpt_step_path(path, "", newest));
	if (access(path, F_OK) != 0 || om_ckpt_step_of(base) == OM_NO_STEP)
		om_die("checkpoint",
		    "there is none in %s: it has no folder step-... and no index.json; %s",
		    strcmp(path, ".") == 0 ? "this folder" : path, how);
}

/* The first rank's choice by checkpoint.resume, its path, and what to do if it is damaged. */
static void
choose(struct om_index *l, const struct om_conf *c)
{
	bool automatic = strcmp(c->resume, "auto") == 0;
	size_t n = 0;

	if (!om_rank(OM_WORLD)) {
		l->path = automatic ? om_ckpt_newest(l->k) : om_text("%s", c->resume);
		if (!automatic)
			check_path(l->path, "checkpoint.resume", "correct checkpoint.resume");
		l->remedy = l->path ? remedy_new(l->k, automatic) : NULL;
		n = l->path ? strlen(l->path) : 0;
	}
	l->path = share(l->path, &n);
	n = l->remedy ? strlen(l->remedy) : 0;
	l->remedy = share(l->remedy, &n);
}

bool
om_ckpt_resume(struct om_ckpt *k, const struct om_conf *c, unsigned char *arena, uint64_t *step)
{
	struct om_index l = { .k = k };
	char *newest;

	*step = 0;
	if (strcmp(c->resume, "none") == 0) {
		if ((newest = om_ckpt_newest(k)))
			om_die("checkpoint",
			    "%s is here already; use checkpoint.resume=auto to go on from "
			    "it, or "
			    "another "
			    "checkpoint.dir",
			    newest);
		return false;
	}
	choose(&l, c);
	if (l.path) {
		*step = k->first = k->good = load(&l, c, arena);
		k->due = k->dir; /* a kill may have come between the last save and its pruning */
		k->resumed = l.path;
		if (!om_rank(OM_WORLD))
			set_aside(k, *step);
		printf("checkpoint: resumed from %s\n", l.path);
	}
	free(l.remedy);
	return l.path;
}

/* ---- a new run from the weights of another one ----------------------------------------------- */

static bool
listed(const struct om_list *list, const char *name)
{
	for (uint32_t i = 0; i < list->n; i++)
		if (fnmatch(list->a[i], name, 0) == 0)
			return true;
	return false;
}

static bool
taken(const void *arg, const char *name)
{
	const struct om_conf *c = arg;

	return listed(&c->take, name) && !listed(&c->leave, name);
}

/* A pattern that has no effect was meant for something. */
static void
check_patterns(const struct om_index *l, const char *key, const struct om_list *list,
    const struct om_entry *e, uint32_t n)
{
	for (uint32_t i = 0; i < list->n; i++) {
		const char *near = e->t.name;
		uint32_t least = UINT32_MAX, d;
		bool found = false;

		for (uint32_t j = 0; j < n + l->n && !found; j++) {
			const char *name = j < n ? e[j].t.name : l->row[j - n].tensor;

			found = fnmatch(list->a[i], name, 0) == 0;
			if ((d = om_distance(list->a[i], name)) < least) {
				least = d;
				near = name;
			}
		}
		if (!found)
			om_die("checkpoint",
			    "%s: %s: no tensor is called so, here or in %s; the closest is "
			    "%s",
			    key, om_clip(list->a[i]), l->path, near);
	}
}

/* What a new run takes is there and fits, of all ranks; says how much that is. By the first one. */
static void
check_start(struct om_index *l, const struct om_conf *c)
{
	uint32_t n, weights = 0, some = 0;
	struct om_entry *all = om_ckpt_whole(l->k->m - l->k->m->stage, &n);
	char facts[1024];

	check_patterns(l, "checkpoint.take", &c->take, all, n);
	check_patterns(l, "checkpoint.leave", &c->leave, all, n);
	om_index_check_some(l, all, n, taken, c);
	for (uint32_t i = 0; i < n; i++) {
		weights += !all[i].file;
		some += !all[i].file && taken(c, all[i].t.name);
	}
	om_index_facts(l, facts, sizeof facts);
	printf("checkpoint: begins with %s of %s from %s, all else is a new run's%s%s\n",
	    om_commas(some), om_count(weights, "weight tensor"), l->path,
	    *facts ? "; not alike: " : "", facts);
	om_ckpt_entries_free(all, n);
}

/* Ranks that were given other patterns would mix what they load. */
static void
agree_patterns(const struct om_conf *c)
{
	const struct om_list *list[] = { &c->take, &c->leave };
	char *all = om_text("%s", c->start), *more;

	for (size_t i = 0; i < OM_LEN(list); i++)
		for (uint32_t j = 0; j < list[i]->n; j++, all = more) {
			more = om_text("%s\n%zu %s", all, i, list[i]->a[j]);
			free(all);
		}
	om_agree("run.yaml", all, strlen(all));
	free(all);
}

void
om_ckpt_start(struct om_ckpt *k, const struct om_conf *c, unsigned char *arena)
{
	struct om_index l = { .k = k,
		.path = om_text("%s", c->start),
		.remedy = om_text("restore it, or give another checkpoint.start") };
	uint32_t n, used = 0;
	struct om_entry *e = om_ckpt_entries(k->m, OM_TO_LOAD, &n);
	char *index = NULL;
	size_t size = 0;

	agree_patterns(c);
	if (!om_rank(OM_WORLD)) {
		check_path(l.path, "checkpoint.start", "correct checkpoint.start");
		index = om_index_read(&l, &size);
		om_index_parse(&l, index, size);
		check_start(&l, c);
	}
	index = share(index, &size);
	if (om_rank(OM_WORLD))
		om_index_parse(&l, index, size);
	for (uint32_t i = 0; i < n; i++)
		if (!e[i].file && taken(c, e[i].t.name))
			e[used++] = e[i];
		else
			free(e[i].t.name);
	load_tensors(&l, arena, e, used);
	om_weights_gather(k->m, arena);
	om_barrier("checkpoint"); /* no rank has found damage */
	om_index_free(&l);
	om_ckpt_entries_free(e, used);
	free(index);
	free(l.path);
	free(l.remedy);
}

/* ---- weights alone --------------------------------------------------------------------------- */

/* The checkpoint that checkpoint.resume names; there has to be one. */
static void
choose_weights(struct om_index *l, const struct om_conf *c)
{
	const char *dir = l->k->dir;
	bool automatic = strcmp(c->resume, "auto") == 0;

	if (automatic && dir)
		om_ckpt_check_dir(dir);
	if (strcmp(c->resume, "none") != 0)
		choose(l, c);
	if (!l->path)
		om_die("checkpoint",
		    "there is none to evaluate, %s%s; set checkpoint.resume to the path of "
		    "one",
		    automatic && dir ? dir : "",
		    !automatic ? "checkpoint.resume is none"
		    : dir      ? " has none"
			       : "checkpoint.dir is not set");
}

uint64_t
om_ckpt_weights(const struct om_model *m, const struct om_conf *c, unsigned char *arena, FILE *f)
{
	struct om_ckpt k = { .dir = *c->dir ? c->dir : NULL,
		.lock = -1,
		.m = m,
		.average = c->eval_of == OM_AVERAGE_WEIGHTS };
	struct om_index l = { .k = &k };
	uint64_t step;

	choose_weights(&l, c);
	step = load(&l, c, arena);
	fprintf(f, "checkpoint: %s\n", l.path);
	free(l.remedy);
	free(l.path);
	return step;
}

/* A step's directory, or the newest of a directory of them, as run.yaml would name it. */
static struct om_conf
named(const char *path, const char *how)
{
	bool many = om_ckpt_newest_below(path, OM_NO_STEP, NULL) != OM_NO_STEP;

	if (!many)
		check_path(path, "checkpoint.resume", how);
	return (struct om_conf){ .dir = om_text("%s", many ? path : ""),
		.resume =
		    many ? om_text("auto") : om_text("%s%s", strchr(path, '/') ? "" : "./", path) };
}

uint64_t
om_ckpt_weights_at(const struct om_model *m, const char *path, const char *how, int of,
    unsigned char *arena, FILE *f)
{
	struct om_conf c = named(path, how);
	uint64_t step;

	c.eval_of = of;
	step = om_ckpt_weights(m, &c, arena, f);

	om_conf_free(&c);
	return step;
}

/* ---- without an arena ------------------------------------------------------------------------ */

struct om_reader {
	struct om_index l;
	struct om_ckpt k;
	char *index;
	struct om_entry *e;
	uint32_t n;
	struct om_st *st; /* each file is opened once, and one descriptor is held */
	const char **file;
	uint32_t files, open;
	const struct om_index_row *row; /* which is read, and what of it was */
	const struct om_st_tensor *t;
	uint64_t at;
	uint32_t crc;
};

/* The shard of a row, open. */
static struct om_st *
shard_of(struct om_reader *r, const struct om_index_row *row)
{
	const char *file = om_index_text(&r->l, row->map, "file"), *why;
	char *path = om_text("%s/%s", r->l.path, file);
	struct om_st *st;
	uint32_t i = 0;

	while (i < r->files && strcmp(r->file[i], file) != 0)
		i++;
	st = &r->st[i];
	if (r->files && i != r->open)
		om_st_rest(&r->st[r->open]);
	if (strchr(file, '/'))
		om_index_bad(&r->l, file, "is outside of the checkpoint");
	if ((why = i < r->files ? om_st_again(st, path) : om_st_open(st, path)))
		om_index_bad(&r->l, file, "%s", why);
	if (i == r->files)
		r->file[r->files++] = file;
	r->open = i;
	free(path);
	return st;
}

size_t
om_reader_read(struct om_reader *r, const struct om_entry *e, uint64_t at, void *to, size_t n)
{
	size_t size = om_format(r->k.m->optimizer)->bits / 8;
	unsigned char *x = to;

	if (!at)
		r->row = om_index_find(&r->l, e->t.name), r->t = NULL;
	for (size_t some; n; n -= some, at += some, x += some * size) {
		const char *file = om_index_text(&r->l, r->row->map, "file");
		struct om_st *st = shard_of(r, r->row);

		if (!r->t) {
			r->t = om_index_tensor(&r->l, r->row, e, st);
			r->at = r->row->begin;
			r->crc = 0;
		}
		some = r->row->end - at < n ? (size_t)(r->row->end - at) : n;
		if (!om_pread_all(st->fd, x, some * size,
			st->data + r->t->begin + (at - r->row->begin) * size))
			om_index_bad(&r->l, file, "tensor %s: %s", r->row->name,
			    errno ? strerror(errno) : "truncated");
		r->crc = om_crc32c(r->crc, x, some * size);
		if (at + some < r->row->end)
			continue;
		om_index_sum(&r->l, r->row, r->crc);
		r->row = om_index_next(&r->l, r->row);
		r->t = NULL;
	}
	return size;
}

static struct om_reader *
reader(const struct om_model *models, const char *path, const char *how, FILE *f, bool foreign)
{
	struct om_reader *r = om_alloc(1, sizeof *r);
	struct om_conf c = named(path, how);
	uint32_t all[3];
	size_t size;

	r->k = (struct om_ckpt){ .dir = *c.dir ? c.dir : NULL, .lock = -1, .m = models };
	r->l.k = &r->k;
	choose_weights(&r->l, &c);
	r->index = om_index_read(&r->l, &size);
	if (foreign) {
		om_index_parse(&r->l, r->index, size);
		om_index_related(&r->l);
	} else {
		r->e = om_ckpt_whole(models, &r->n);
		check(&r->l, &c, r->index, size, r->e, r->n, om_ckpt_kinds(r->e, r->n, all));
	}
	r->st = om_alloc(r->l.n, sizeof *r->st);
	r->file = om_alloc(r->l.n, sizeof *r->file);
	fprintf(f, "checkpoint: %s\n", r->l.path);
	r->k.dir = NULL;
	om_conf_free(&c);
	return r;
}

struct om_reader *
om_reader_open(const struct om_model *models, const char *path, const char *how, FILE *f)
{
	return reader(models, path, how, f, false);
}

struct om_reader *
om_reader_foreign(const struct om_model *models, const char *path, const char *how, FILE *f)
{
	return reader(models, path, how, f, true);
}

bool
om_reader_shape(const struct om_reader *r, const char *name, uint64_t dim[2])
{
	const struct om_index_row *row = om_index_find(&r->l, name);
	struct om_st_tensor t = { 0 };

	if (row)
		om_index_shape(row, &t);
	dim[0] = t.ndims > 0 ? t.dim[0] : 0;
	dim[1] = t.ndims > 1 ? t.dim[1] : 0;
	return row;
}

static int
by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void
om_reader_check(struct om_reader *r, const struct om_entry *e, uint32_t n)
{
	const char **name = om_alloc(n, sizeof *name);
	char what[1024];

	for (uint32_t i = 0; i < n; i++) {
		name[i] = e[i].t.name;
		if (om_index_differs(&r->l, &e[i], what, sizeof what))
			om_index_bad(&r->l, "index.json", "%s", what);
	}
	qsort(name, n, sizeof *name, by_name);
	for (uint32_t i = 0; i < r->l.n; i++) {
		const char *other = r->l.row[i].tensor;

		if (!om_ckpt_moment(other) && !bsearch(&other, name, n, sizeof *name, by_name))
			om_index_bad(&r->l, "index.json",
			    "tensor %s has no place in the trainer's model", other);
	}
	free(name);
}

double
om_reader_fact(const struct om_reader *r, const char *name)
{
	const json_t *facts = json_object_get(r->l.doc, "description");
	const char *value = json_string_value(json_object_get(facts, name));

	return value && !strstr(value, " x ") ? atof(value) : 0;
}

const struct om_entry *
om_reader_entries(const struct om_reader *r, uint32_t *n)
{
	*n = r->n;
	return r->e;
}

void
om_reader_close(struct om_reader *r)
{
	for (uint32_t i = 0; i < r->files; i++)
		om_st_close(&r->st[i]);
	om_index_free(&r->l);
	om_ckpt_entries_free(r->e, r->n);
	free(r->index);
	free(r->l.remedy);
	free(r->l.path);
	free(r->st);
	free(r->file);
	free(r);
}
