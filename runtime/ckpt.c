/*
 * Checkpoints: DIR/step-000100/ holds safetensors shards of weights and moments, where no tensor is
 * cut Hugging Face's index of the weights, and index.json, which names every tensor's file, shape
 * and checksum and ends with its own. All is written under DIR/.tmp-..., synced, and renamed: a
 * name without a dot is a whole checkpoint.
 *
 * Every rank writes shards of what is its own; the first one does all else with the directory.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "ckpt.h"

/* What a stored tensor has in several places; weights are shards of their own, all else shares
 * theirs. */
static const struct {
	const char *prefix, *muon; /* what names begin with, of AdamW's and of Muon's */
	size_t at;                 /* offset member of om_param */
	int file;                  /* 0 model, 1 optimizer */
} part[] = {
	{ "", "", offsetof(struct om_param, weight), 0 },
	{ "exp_avg.", "momentum_buffer.", offsetof(struct om_param, m), 1 },
	{ "exp_avg_sq.", "row_mean_sq.", offsetof(struct om_param, v), 1 },
	{ "average.", "average.", offsetof(struct om_param, average), 1 },
};
enum { AVERAGE = OM_LEN(part) - 1 }; /* which of them is no moment */

bool
om_ckpt_is_average(const char *name)
{
	return strncmp(name, part[AVERAGE].prefix, strlen(part[AVERAGE].prefix)) == 0;
}

const char *
om_ckpt_moment(const char *name)
{
	for (size_t i = 1; i < AVERAGE; i++) {
		const char *const of[] = { part[i].prefix, part[i].muon };

		for (size_t k = 0; k < OM_LEN(of); k++)
			if (strncmp(name, of[k], strlen(of[k])) == 0)
				return of[k];
	}
	return NULL;
}

/* Where the tensor's i-th part lies, and how many elements of the parameter are one of it. */
static uint64_t
part_of(const struct om_model *m, const struct om_param *p, size_t i, uint64_t *each)
{
	uint64_t state;

	memcpy(&state, (const char *)p + part[i].at, sizeof state);
	*each = i ? om_state_each(m, p, state) : 1;
	return state;
}

/* Whether there is such a part: averages may not be, and Muon keeps no v but NorMuon's. */
static bool
kept(const struct om_model *m, const struct om_param *p, size_t i)
{
	uint64_t each;

	return !i || (i < AVERAGE && !om_muon_cols(m, p)) || part_of(m, p, i, &each);
}

/* A tensor's i-th part, or its elements [first, end) of the stored parameter. */
static struct om_entry
entry_of(
    const struct om_model *m, const struct om_tensor *t, size_t i, uint64_t first, uint64_t end)
{
	const bool moment = i && i < AVERAGE;
	const struct om_format *is = om_format(moment ? m->moments : m->optimizer);
	char *name = om_tensor_name(t);
	uint64_t each, state = part_of(m, t->p, i, &each);
	bool buffer = t->p >= m->param + m->nparams;
	bool muon = om_muon_cols(m, t->p), rows = each > 1;
	struct om_entry e = {
		.t = { om_text("%s%s", muon ? part[i].muon : part[i].prefix, name), is->dtype,
		    { t->p->dim[0], rows ? 0 : t->p->dim[1] }, rows ? 1 : t->p->ndims, 0,
		    (end - first) / each * (is->bits / 8) },
		.p = t->p,
		.numel = t->p->numel / each,
		.begin = (first - t->first) / each,
		.end = (end - t->first) / each,
		.rep = t->rep,
		.first = first,
		.size = moment ? m->moment_size : m->real,
		.file = part[i].file,
		.buffer = buffer,
	};

	e.off = i ? om_state_at(m, t->p, state, t->rep, first) : om_home_at(m, t->p, t->rep, first);
	free(name);
	return e;
}

struct om_entry *
om_ckpt_entries(const struct om_model *m, enum om_entries which, uint32_t *n)
{
	struct om_entry *all = om_alloc(OM_LEN(part) * om_tensor_count(m), sizeof *all), *e = all;

	for (size_t i = 0; i < OM_LEN(part); i++)
		for (struct om_tensor t = { NULL, 0, 0, 0 }; om_tensor_next(m, &t);) {
			bool buffer = t.p >= m->param + m->nparams;
			uint64_t first = t.first, end = first + t.p->numel, mine, beyond;

			if (i && buffer) /* they have no moments */
				break;
			if (!kept(m, t.p, i))
				continue;
			om_param_part(m, t.p, &mine, &beyond);
			if (which == OM_TO_SAVE || !buffer) {
				first = mine > first ? mine : first;
				end = beyond < end ? beyond : end;
			}
			if (first < end)
				*e++ = entry_of(m, &t, i, first, end);
		}
	*n = (uint32_t)(e - all);
	return all;
}

const uint32_t *
om_ckpt_kinds(const struct om_entry *e, uint32_t n, uint32_t all[3])
{
	memset(all, 0, 3 * sizeof *all);
	for (uint32_t i = 0; i < n; i++) {
		all[0] += !e[i].file;
		all[1] += !om_ckpt_is_average(e[i].t.name);
		all[2]++;
	}
	return all;
}

void
om_ckpt_count(const struct om_model *m, const struct om_entry *e, uint32_t n, uint32_t all[3])
{
	int64_t sum[3] = { 0 };

	for (uint32_t i = 0; i < n; i++) { /* each by the rank that has its beginning */
		uint32_t one[3];

		if (e[i].begin || (e[i].p >= m->param + m->nparams && om_rank(e[i].p->copies)))
			continue;
		om_ckpt_kinds(&e[i], 1, one);
		for (int k = 0; k < 3; k++)
			sum[k] += one[k];
	}
	om_all_sum_i64(OM_WORLD, "checkpoint", sum, 3);
	for (int k = 0; k < 3; k++)
		all[k] = (uint32_t)sum[k];
}

/* Numbers in names count as numbers: layer 2 comes before layer 10. */
static int
by_name(const void *a, const void *b)
{
	const struct om_entry *x = a, *y = b;
	const char *s = x->t.name, *t = y->t.name;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	for (; *s && *s == *t; s++, t++)
		;
	if (isdigit((unsigned char)*s) && isdigit((unsigned char)*t)) {
		size_t m = strspn(s, "0123456789"), n = strspn(t, "0123456789");

		if (m != n)
			return m < n ? -1 : 1;
	}
	return (*s > *t) - (*s < *t);
}

struct om_entry *
om_ckpt_whole(const struct om_model *models, uint32_t *n)
{
	uint64_t stages = models->mesh.size[OM_PIPELINE], ranks = models->mesh.size[OM_EXPERT];
	uint64_t most = 0, count = 0, used = 0;
	struct om_entry *all;

	stages = stages ? stages : 1;
	ranks = ranks ? ranks : 1;
	for (uint64_t s = 0; s < stages; s++)
		most += OM_LEN(part) * ranks * om_tensor_count(&models[s]);
	all = om_alloc(most, sizeof *all);
	for (uint64_t s = 0; s < stages; s++)
		for (struct om_tensor t = { NULL, 0, 0, 0 }; om_tensor_next(&models[s], &t);) {
			bool buffer = t.p >= models[s].param + models[s].nparams;

			for (uint64_t r = 0; r < (t.p->experts ? ranks : 1); r++)
				for (size_t i = 0; i < (buffer ? 1 : OM_LEN(part)); i++) {
					struct om_tensor at = t;

					if (!kept(&models[s], t.p, i))
						continue;
					at.expert += (uint32_t)r * t.p->experts;
					all[count++] = entry_of(
					    &models[s], &at, i, t.first, t.first + t.p->numel);
				}
		}
	qsort(all, count, sizeof *all, by_name);
	for (uint64_t i = 0; i < count; i++) /* a tied head's stage has the embedding too */
		if (used && by_name(&all[used - 1], &all[i]) == 0)
			free(all[i].t.name);
		else
			all[used++] = all[i];
	*n = (uint32_t)used;
	return all;
}

void
om_ckpt_entries_free(struct om_entry *e, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		free(e[i].t.name);
	free(e);
}

void
om_ckpt_shape(FILE *f, const struct om_st_tensor *t)
{
	fputc('[', f);
	for (int i = 0; i < t->ndims; i++)
		fprintf(f, "%s%llu", i ? ", " : "", (unsigned long long)t->dim[i]);
	fputc(']', f);
}

char *
om_ckpt_slice_name(const char *tensor, uint64_t begin, uint64_t end, uint64_t numel)
{
	if (end - begin == numel)
		return om_text("%s", tensor);
	return om_text("%s[%llu:%llu]", tensor, (unsigned long long)begin, (unsigned long long)end);
}

/* ---- directories ----------------------------------------------------------------------------- */

uint64_t
om_ckpt_step_of(const char *name)
{
	const char *digits = name + 5;

	if (strncmp(name, "step-", 5) != 0 || strlen(digits) < 6 ||
	    digits[strspn(digits, "0123456789")])
		return OM_NO_STEP;
	return strtoull(digits, NULL, 10);
}

/* The newest step below one, of those whose names begin with prefix and "step-". */
static uint64_t
newest_named(const char *dir, const char *prefix, uint64_t below, uint64_t *count)
{
	DIR *d = opendir(dir);
	struct dirent *entry;
	uint64_t best = OM_NO_STEP;

	if (count)
		*count = 0;
	while (d && (entry = readdir(d))) {
		size_t n = strlen(prefix);
		uint64_t step = strncmp(entry->d_name, prefix, n) != 0
				    ? OM_NO_STEP
				    : om_ckpt_step_of(entry->d_name + n);

		if (count && step != OM_NO_STEP)
			++*count;
		if (step < below && (best == OM_NO_STEP || step > best))
			best = step;
	}
	if (d)
		closedir(d);
	return best;
}

uint64_t
om_ckpt_newest_below(const char *dir, uint64_t below, uint64_t *count)
{
	return newest_named(dir, "", below, count);
}

char *
om_ckpt_list(int n, char **path, uint64_t *size)
{
	char *text = NULL;
	size_t length = 0;
	FILE *f = om_rank(OM_WORLD) ? NULL : open_memstream(&text, &length);

	for (int i = 0; i < n && f; i++) {
		uint64_t count, *step, at = 0;

		if (om_ckpt_is_one(path[i])) {
			fprintf(f, "%s%c", path[i], 0);
			continue;
		}
		om_ckpt_newest_below(path[i], OM_NO_STEP, &count);
		if (!count)
			om_die("checkpoint",
			    "%s is none, and has none in it; name a folder step-N, or one of such",
			    path[i]);
		step = om_alloc(count, sizeof *step);
		for (uint64_t below = OM_NO_STEP; at < count; below = step[at++])
			step[at] = om_ckpt_newest_below(path[i], below, NULL);
		while (at--)
			if (step[at] != OM_NO_STEP) {
				char *one = om_ckpt_step_path(path[i], "", step[at]);

				fprintf(f, "%s%c", one, 0);
				free(one);
			}
		free(step);
	}
	if (f && fclose(f) != 0)
		om_die("memory", "cannot list checkpoints");
	*size = length;
	om_bcast("checkpoints", size, sizeof *size);
	if (om_rank(OM_WORLD))
		text = om_alloc(*size, 1);
	om_bcast("checkpoints", text, *size);
	return text;
}

char *
om_ckpt_step_path(const char *dir, const char *prefix, uint64_t step)
{
	return om_text("%s/%sstep-%06llu", dir, prefix, (unsigned long long)step);
}

bool
om_ckpt_remove(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *entry;

	while (d && (entry = readdir(d)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			unlinkat(dirfd(d), entry->d_name, 0);
	if (d)
		closedir(d);
	return rmdir(path) == 0;
}

void
om_ckpt_make_parents(const char *path)
{
	char *part = om_text("%s", path);

	for (char *s = part + 1; *part && *s; s++)
		if (*s == '/') {
			*s = 0;
			mkdir(part, 0777);
			*s = '/';
		}
	free(part);
}

static void
make_dirs(const char *path)
{
	om_ckpt_make_parents(path);
	if (mkdir(path, 0777) != 0 && errno != EEXIST)
		om_die("checkpoint", "%s: cannot be made: %s; correct checkpoint.dir", path,
		    strerror(errno));
}

bool
om_ckpt_is_one(const char *path)
{
	char *index = om_text("%s/index.json", path);
	bool is = access(index, F_OK) == 0;

	free(index);
	return is;
}

void
om_ckpt_check_dir(const char *dir)
{
	char *above = om_text("%s", dir), *end = above + strlen(above);

	while (end > above && end[-1] == '/') /* the one slash or many after its name */
		*--end = 0;
	while (end > above && end[-1] != '/')
		end--;
	while (end > above + 1 && end[-1] == '/')
		end--;
	*end = 0;
	if (om_ckpt_is_one(dir))
		om_die("checkpoint",
		    "checkpoint.dir = %s is one checkpoint, not the folder of them; use "
		    "checkpoint.dir=%s, or to begin another folder with it checkpoint.resume=%s",
		    dir, *above ? above : ".", dir);
	free(above);
}

/* Removes what is half-written or pruned; gives the path of what cannot be, and errno; or NULL. */
static char *
clear(const char *where)
{
	DIR *dir = opendir(where);
	struct dirent *entry;
	char *path = NULL;

	while (dir && !path && (entry = readdir(dir)))
		if (strncmp(entry->d_name, ".tmp-step-", 10) == 0) {
			path = om_text("%s/%s", where, entry->d_name);
			if (om_ckpt_remove(path)) {
				free(path);
				path = NULL;
			}
		}
	if (dir)
		closedir(dir);
	return path;
}

/* Makes and locks the directory, and clears what a killed run left. */
static void
take_dir(struct om_ckpt *k)
{
	char *left;

	om_ckpt_check_dir(k->dir);
	make_dirs(k->dir);
	if ((k->lock = open(k->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
		om_die("checkpoint", "%s: %s; correct checkpoint.dir", k->dir, strerror(errno));
	if (flock(k->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
		om_die("checkpoint",
		    "%s: another trainer is writing here; give each its own checkpoint.dir",
		    k->dir);
	if (faccessat(k->lock, ".", W_OK, 0) != 0)
		om_die("checkpoint", "%s: %s; make it writable", k->dir, strerror(errno));
	if ((left = clear(k->dir))) /* the first save would fail of it */
		om_die("checkpoint",
		    "%s, which a killed run left, cannot be removed: %s; remove it", left,
		    strerror(errno));
}

/* What a save is of: this rank's bytes in the arena, and all ranks' on the disk. */
static void
measure(struct om_ckpt *k)
{
	enum { LINES = 512 }; /* a tensor's in the index and in its shard */
	uint32_t n;
	struct om_entry *e = om_ckpt_entries(k->m, OM_TO_SAVE, &n);
	int64_t bytes = 0;

	for (uint32_t i = 0; i < n; i++) {
		k->part += om_flow_bytes(&e[i]);
		bytes += (int64_t)(e[i].t.end - e[i].t.begin + LINES);
	}
	om_ckpt_entries_free(e, n);
	om_all_sum_i64(OM_WORLD, "checkpoint", &bytes, 1);
	k->bytes = (uint64_t)bytes;
}

void
om_ckpt_open(struct om_ckpt *k, const struct om_model *m, const struct om_data *d,
    struct om_skip *skip, const struct om_conf *c)
{
	*k = (struct om_ckpt){
		.dir = *c->dir ? c->dir : NULL,
		.keep = c->keep,
		.keep_every = c->keep_every,
		.given = c->given,
		.ngiven = c->saves.n,
		.async = c->async,
		.lock = -1,
		.m = m,
		.data = d,
		.skip = skip,
	};
	measure(k);
	if (k->dir && !om_rank(OM_WORLD))
		take_dir(k);
	om_barrier("checkpoint");
}

void
om_ckpt_close(struct om_ckpt *k)
{
	om_ckpt_end(k);
	om_beside_end(&k->beside);
	om_slots_free(&k->slots);
	om_spare_free(k->spare);
	if (k->lock >= 0)
		close(k->lock);
	k->lock = -1;
	free(k->resumed);
}

char *
om_ckpt_newest(const struct om_ckpt *k)
{
	uint64_t step = k->dir ? om_ckpt_newest_below(k->dir, OM_NO_STEP, NULL) : OM_NO_STEP;

	return step != OM_NO_STEP ? om_ckpt_step_path(k->dir, "", step) : NULL;
}

/* The newest one of a directory that finite numbers followed, NULL: none. */
static char *
newest_good(const struct om_ckpt *k, const char *dir)
{
	uint64_t step = om_ckpt_newest_below(dir, k->good, NULL);

	return step != OM_NO_STEP ? om_ckpt_step_path(dir, "", step) : NULL;
}

char *
om_ckpt_back(struct om_ckpt *k, uint64_t most, uint64_t *step)
{
	uint64_t below = k->good < most + 1 ? k->good : most + 1;

	*step = OM_NO_STEP;
	om_ckpt_end(k);
	if (k->dir && !om_rank(OM_WORLD))
		*step = om_ckpt_newest_below(k->dir, below, NULL);
	om_bcast("checkpoint", step, sizeof *step);
	return *step != OM_NO_STEP ? om_ckpt_step_path(k->dir, "", *step) : NULL;
}

char *
om_ckpt_advice(struct om_ckpt *k)
{
	char *newest, *good, *text;

	om_ckpt_end(k);
	newest = om_ckpt_newest(k);
	good = k->dir ? newest_good(k, k->dir) : NULL;
	if (k->resumed && k->good == k->first) { /* it was the first step: what was loaded is bad */
		char *dir = om_text("%s", k->resumed), *end = strrchr(dir, '/');

		if (end)
			*end = 0;
		free(good);
		good = newest_good(k, end ? dir : ".");
		text =
		    good ? om_text("resume from an earlier one by checkpoint.resume=%s: %s, which "
				   "this run began with, is at fault",
			       good, k->resumed)
			 : om_text("start anew with another checkpoint.dir: %s, which this run "
				   "began with, is at fault, and none is earlier",
			       k->resumed);
		free(dir);
	} else if (!newest) {
		text = om_text("start anew");
	} else if (!good) {
		text = om_text("start anew with another checkpoint.dir: %s is suspect, no finite "
			       "step came after it",
		    newest);
	} else if (strcmp(good, newest) == 0) {
		text = om_text("resume from %s", good);
	} else {
		text = om_text("resume by checkpoint.resume=%s: %s is suspect, no finite step came "
			       "after it",
		    good, newest);
	}
	free(newest);
	free(good);
	return text;
}

bool
om_ckpt_given(const struct om_ckpt *k, uint64_t step)
{
	for (uint32_t i = 0; i < k->ngiven; i++)
		if (k->given[i] == step)
			return true;
	return false;
}

static bool
for_ever(const struct om_ckpt *k, uint64_t step)
{
	return om_ckpt_given(k, step) || (k->keep_every && step % k->keep_every == 0);
}

static void
remove_pruned(void *arg)
{
	const struct om_ckpt *k = arg;

	free(clear(k->dir));
}

/* Takes away those of a kind of names beyond the newest ones that keep says. */
static void
prune_named(const struct om_ckpt *k, const char *prefix)
{
	uint64_t s = OM_NO_STEP, n = 0;

	while (k->keep && (s = newest_named(k->dir, prefix, s, NULL)) != OM_NO_STEP) {
		char *path, *tmp;

		if (++n <= k->keep || (!*prefix && for_ever(k, s)))
			continue;
		path = om_ckpt_step_path(k->dir, prefix, s);
		/* half removed, it must not look whole */
		tmp = om_text("%s/.tmp-step-%s%llu", k->dir, prefix, (unsigned long long)s);
		(void)!rename(path, tmp);
		free(path);
		free(tmp);
	}
}

static void
prune(struct om_ckpt *k)
{
	prune_named(k, "");
	prune_named(k, "bad-");
	if (k->async) /* of gigabytes that takes a while */
		om_beside(&k->beside, remove_pruned, k);
	else
		remove_pruned(k);
}

void
om_ckpt_good(struct om_ckpt *k, uint64_t step)
{
	uint64_t newest;

	k->good = step + 1;
	if (!k->due || k->save || om_beside_busy(&k->beside))
		return;
	newest = om_ckpt_newest_below(k->dir, OM_NO_STEP, NULL);
	if (newest != OM_NO_STEP && newest >= k->good)
		return;
	if (!om_rank(OM_WORLD))
		prune(k);
	k->due = false;
}

/* ---- room on the disk ------------------------------------------------------------------------ */

/* Bytes that are free where checkpoints go; UINT64_MAX: the file system does not say. */
static uint64_t
room_of(const struct om_ckpt *k)
{
	struct statvfs v;

	if (fstatvfs(k->lock, &v) != 0 || !v.f_blocks)
		return UINT64_MAX;
	return (uint64_t)v.f_bavail * v.f_frsize;
}

char *
om_ckpt_make_room(const struct om_ckpt *k)
{
	uint64_t old = 0, bad = 0;

	if (k->dir) {
		newest_named(k->dir, "old-", OM_NO_STEP, &old);
		newest_named(k->dir, "bad-", OM_NO_STEP, &bad);
	}
	if (!(old + bad))
		return om_text("free some space, or keep fewer by checkpoint.keep");
	return om_text("free some space, of %s that this run has given up there (old-step-..., "
		       "bad-step-...) for example, or keep fewer by checkpoint.keep",
	    om_count(old + bad, "checkpoint"));
}

void
om_ckpt_room(const struct om_ckpt *k)
{
	uint64_t room = k->lock >= 0 ? room_of(k) : UINT64_MAX;
	char *last;

	if (room >= k->bytes)
		return;
	last = om_ckpt_newest(k);
	om_die("checkpoint",
	    "%s: one takes %s, %s are free there, %s are missing; %s%s; %s, and train again",
	    k->dir, om_bytes(k->bytes), om_bytes(room), om_bytes(k->bytes - room),
	    last ? "the last whole checkpoint is " : "there is no whole checkpoint",
	    last ? last : "", om_ckpt_make_room(k));
}

void
om_ckpt_plan(const struct om_ckpt *k, uint64_t done, uint64_t steps, uint64_t every)
{
	uint64_t come, stay, room;

	if (k->lock < 0)
		return;
	om_ckpt_room(k);
	come = every ? (steps - 1) / every - done / every + 1 : 1;
	stay = k->keep + 1 + (k->keep_every ? steps / k->keep_every - done / k->keep_every : 0);
	stay = k->keep && stay < come ? stay : come;
	for (uint32_t i = 0; i < k->ngiven; i++)
		stay += k->given[i] > done && !(every && k->given[i] % every == 0);
	room = room_of(k);
	if (room / k->bytes < stay)
		printf("checkpoint: there is room for %s of the %s, of %s each, that are to be "
		       "there at once; keep fewer by checkpoint.keep\n",
		    om_commas(room / k->bytes), om_commas(stay), om_bytes(k->bytes));
}
