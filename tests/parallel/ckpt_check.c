/*
 * Checkpoints and first weights of several ranks, with no model behind them: a hand-written
 * om_model of any layout, whose values are functions of tensor, element and step. What is loaded is
 * compared with what it must be, byte for byte over the whole arena: paddings, too.
 *
 *   ckpt_check DATA EXPERT PIPELINE FORMAT save|load|weights|start STEP DIR...
 *   ckpt_check DATA EXPERT PIPELINE FORMAT draws STEP DIR: a checksum of all moments' draws
 *
 * FORMAT is fp32, fp64, bf16 (two bytes a weight) or bf16x4 (four, as the CPU has them), and with m
 * behind these two moments are of as many. CKPT_SHORT: what is loaded has moments in bf16. The
 * environment breaks a save: CKPT_KILL="RANK CALL N" kills that rank as it makes its Nth call of
 * the system (mkdir, write, fsync, rename), CKPT_FAIL lets that call fail. CKPT_VOCAB=N makes the
 * embedding larger, CKPT_SHARD=N is how large a shard may be, CKPT_RESUME=PATH what to load. Saves
 * are written beside, and the arena is spoilt once it is copied; CKPT_SLOTS=N is how many slots
 * there are for that, CKPT_WAIT lets the save be waited for, CKPT_FREE=N is how many bytes the disk
 * has free.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "../../runtime/ckpt.h"
#include "../../runtime/rng.h"

enum { LAYERS = 4, EXPERTS = 8, DIM = 5, SEED = 11, ALIGN = 4 };
enum state { HOME, M, V, NSTATES };

/* ---- calls of the system that a save makes, counted ------------------------------------ */

static bool saving;

enum call { MKDIR, WRITE, FSYNC, RENAME, NCALLS };

/* Whether this rank's next call of the kind shall fail. */
static bool
broken(enum call which)
{
	static const char *const name[] = { "mkdir", "write", "fsync", "rename" };
	static unsigned n[NCALLS];
	const char *kind[] = { getenv("CKPT_KILL"), getenv("CKPT_FAIL") };
	char now[64];

	if (!saving)
		return false;
	snprintf(now, sizeof now, "%u %s %u", om_rank(OM_WORLD), name[which], ++n[which]);
	if (kind[0] && strcmp(kind[0], now) == 0)
		raise(SIGKILL);
	errno = ENOSPC;
	return kind[1] && strcmp(kind[1], now) == 0;
}

/* the linker's --wrap puts these before the real ones */
int __real_mkdir(const char *path, mode_t mode), __wrap_mkdir(const char *path, mode_t mode);
int __real_fsync(int fd), __wrap_fsync(int fd);
int __real_rename(const char *from, const char *to), __wrap_rename(const char *, const char *);
bool __real_om_write_all(int fd, const void *p, size_t n);
bool __wrap_om_write_all(int fd, const void *p, size_t n);

int
__wrap_mkdir(const char *path, mode_t mode)
{
	return broken(MKDIR) ? -1 : __real_mkdir(path, mode);
}

int
__wrap_fsync(int fd)
{
	return broken(FSYNC) ? -1 : __real_fsync(fd);
}

int
__wrap_rename(const char *from, const char *to)
{
	return broken(RENAME) ? -1 : __real_rename(from, to);
}

bool
__wrap_om_write_all(int fd, const void *p, size_t n)
{
	return !broken(WRITE) && __real_om_write_all(fd, p, n);
}

int __real_fstatvfs(int fd, struct statvfs *v), __wrap_fstatvfs(int fd, struct statvfs *v);
int
__wrap_fstatvfs(int fd, struct statvfs *v)
{
	const char *room = getenv("CKPT_FREE");
	int status = __real_fstatvfs(fd, v);

	if (room) {
		v->f_frsize = 1;
		v->f_bavail = strtoull(room, NULL, 10);
	}
	return status;
}

/* ---- the model of this rank ------------------------------------ */

static struct om_model m;
static struct om_param param[16];
static struct om_bucket bucket[5];
static uint32_t layers[2][LAYERS]; /* this stage's: all, those with experts */
static uint64_t vocab = 37, first_state;
static int64_t *lots; /* this rank's, as far as draws are to be summed */
static uint64_t draws;

/* buckets: matrices and norm of the ends; of a layer its matrix, its norm, its experts */
enum { ENDS, LAST, DENSE, SMALL, OWN };

static void
add(const char *name, int group, uint32_t nlayers, uint32_t experts, uint64_t d0, uint64_t d1)
{
	struct om_param *p = &param[m.nparams++];

	*p = (struct om_param){ .name = name,
		.bucket = (uint32_t)group,
		.numel = d0 * (d1 ? d1 : 1),
		.dim = { d0, d1 },
		.ndims = d1 ? 2 : 1,
		.layer = nlayers ? layers[experts != 0] : NULL,
		.nlayers = nlayers ? nlayers : 1,
		.experts = experts,
		.init = group == SMALL || group == LAST ? OM_ONE : OM_NORMAL };
	p->stride = (experts ? experts : 1) * p->numel;
	if (group > OWN)
		return;
	/* a little room between parameters, as the generator leaves some */
	p->at = (bucket[group].elems + ALIGN - 1) / ALIGN * ALIGN;
	bucket[group].elems = p->at + p->stride;
	bucket[group].nlayers = p->nlayers;
}

static void
make_model(const char *format)
{
	bool first = m.stage == 0, last = m.stage == om_size(OM_PIPELINE) - 1;
	bool bf16 = strncmp(format, "bf16", 4) == 0;
	uint32_t n = 0, moe = 0, nbuffers, own = EXPERTS / om_size(OM_EXPERT);
	uint64_t off = 192, elems = 0;

	m.name = "layouts";
	m.version = "0";
	m.fingerprint = "f";
	m.weights = bf16 ? "bf16" : format;
	m.optimizer = bf16 ? "fp32" : format;
	m.real = strcmp(format, "fp64") == 0 ? 8 : 4;
	m.weight_size = bf16 && !strstr(format, "x4") ? 2 : m.real;
	m.moments = strchr(format, 'm') ? "bf16" : m.optimizer;
	m.moment_size = strchr(format, 'm') ? m.weight_size : m.real;
	m.init_std = 0.02;
	m.global = 8;
	m.param = param;
	m.bucket = bucket;
	m.nbuckets = OM_LEN(bucket);
	for (uint32_t l = 0; l < LAYERS; l++) /* the first layer has no experts */
		if (l * om_size(OM_PIPELINE) / LAYERS == m.stage) {
			layers[0][n++] = l;
			if (l)
				layers[1][moe++] = l;
		}
	for (uint32_t b = 0; b < OM_LEN(bucket); b++)
		bucket[b].group = b == OWN ? OM_EXPERT_DATA : OM_DATA;
	if (first)
		add("model.embed_tokens.weight", ENDS, 0, 0, vocab, DIM);
	add("model.layers.%l.norm.weight", SMALL, n, 0, 13, 0);
	add("model.layers.%l.self_attn.o_proj.weight", DENSE, n, 0, 7, 11);
	if (moe) {
		add("model.layers.%l.mlp.experts.%e.up_proj.weight", OWN, moe, own, 3, DIM);
		add("model.layers.%l.mlp.experts.%e.down_proj.weight", OWN, moe, own, DIM, 3);
	}
	if (last) {
		add("model.norm.weight", LAST, 0, 0, DIM, 0);
		add("lm_head.weight", ENDS, 0, 0, vocab, DIM);
	}
	nbuffers = m.nparams;
	if (moe)
		add("model.layers.%l.mlp.bias", OWN + 1, moe, 0, EXPERTS, 0);
	if (moe) /* whole on every rank, though it tells of all experts */
		param[nbuffers].layer = layers[1], param[nbuffers].copies = OM_DATA;
	m.nbuffers = m.nparams - nbuffers;
	m.nparams = nbuffers;

	for (uint32_t b = 0; b < OM_LEN(bucket); b++) {
		uint64_t ranks = om_size(bucket[b].group);

		bucket[b].elems = (bucket[b].elems + ranks - 1) / ranks * ranks;
		bucket[b].weight = off + elems * m.weight_size;
		elems += bucket[b].elems * bucket[b].nlayers;
	}
	off += elems * m.weight_size + 64;
	for (uint32_t i = 0; i < m.nbuffers; i++, off += EXPERTS * LAYERS * m.real)
		param[m.nparams + i].weight = off;
	first_state = off;
	for (uint32_t b = 0; b < OM_LEN(bucket); b++) {
		uint64_t n = bucket[b].elems / om_size(bucket[b].group) * bucket[b].nlayers;

		for (uint32_t i = 0; i < m.nparams; i++) {
			struct om_param *p = &param[i];
			uint64_t at = off + p->at * m.moment_size, one = n * m.moment_size;

			if (p->bucket != b)
				continue;
			p->weight = bucket[b].weight + p->at * m.weight_size;
			p->stride = bucket[b].elems;
			p->m = at;
			p->v = at + one;
			p->master = bf16 ? off + 2 * one + p->at * m.real : OM_NO_MASTER;
		}
		off += n * (2 * m.moment_size + m.real);
	}
	if (strchr(format, 'm'))
		m.lots_off = off = (off + 7) / 8 * 8;
	for (uint32_t i = 0; i < m.nparams && m.lots_off; i++)
		off += 8 * OM_PIECE_WORDS * param[i].nlayers;
	m.arena_bytes = off + 8 * OM_LOTS_FIRST;
}

/* ---- what must be where ------------------------------------ */

/* Bits that tell a tensor's steps and states apart from those of others. */
static uint64_t
named(const char *name, int state, uint64_t step)
{
	uint64_t h = 0xcbf29ce484222325 ^ (step * 3 + (uint64_t)state) * 0x9e3779b97f4a7c15;

	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * 0x100000001b3;
	return h;
}

/* And its elements. */
static uint64_t
mixed(uint64_t h, uint64_t i)
{
	h ^= i * 0xbf58476d1ce4e5b9;
	h = (h ^ h >> 31) * 0x94d049bb133111eb;
	return h ^ h >> 29;
}

/* A value that has all of its format's bits. */
static double
value(uint64_t h, uint64_t i)
{
	double x = (double)(mixed(h, i) >> 11) * 0x1p-53 - 0.5;

	return m.real == 8 ? x : (double)(float)x;
}

static void
store(unsigned char *arena, uint64_t off, size_t size, double x)
{
	float y = (float)x;
	uint32_t bits;
	uint16_t half;

	memcpy(&bits, &y, 4);
	half = om_to_bf16(y);
	if (size == 8)
		memcpy(arena + off, &x, 8);
	else if (size == 4)
		memcpy(arena + off, &bits, 4);
	else
		memcpy(arena + off, &half, 2);
}

/* A moment's bytes, in bf16 where they, or those that were saved, are. */
static void
store_moment(unsigned char *arena, uint64_t off, double x)
{
	float y = (float)x;
	uint32_t up = (uint32_t)om_to_bf16(y) << 16;

	if (strcmp(m.moments, "bf16") == 0 || getenv("CKPT_SHORT"))
		memcpy(&y, &up, 4);
	store(arena, off, m.moment_size, m.moment_size == 8 ? x : (double)y);
}

/* Adds what the moment that lies there is drawn by: its word, and whose it is. */
static void
add_draw(uint64_t at, const char *name, uint64_t i)
{
	const int64_t *piece = lots + OM_LOTS_FIRST, *end;
	int64_t away = (int64_t)(at - m.lots_off);
	struct om_philox four;

	end = piece + lots[OM_LOTS_PIECES] * OM_PIECE_WORDS;
	while (piece + OM_PIECE_WORDS < end && piece[OM_PIECE_WORDS + OM_PIECE_AT] <= away)
		piece += OM_PIECE_WORDS;
	away = (away - piece[OM_PIECE_AT]) / (int64_t)m.moment_size + piece[OM_PIECE_INDEX];
	four = om_moment_draw(lots[OM_LOTS_KEY], piece[OM_PIECE_TENSOR], away / 4);
	draws += mixed(named(name, M, four.v[away % 4]), i) >> 20; /* a sum of them has room */
}

/* The arena of this rank: step's values, or where z is given first ones and no moments. */
static void
fill(unsigned char *arena, uint64_t step, bool moments, bool initial)
{
	char name[128], with[160];
	double *z = om_alloc(initial ? vocab * DIM : 1, sizeof *z); /* no tensor is larger */

	for (uint32_t k = 0; k < m.nparams + m.nbuffers; k++) {
		const struct om_param *p = &param[k];
		const struct om_bucket *b = &bucket[p->bucket <= OWN ? p->bucket : 0];
		uint64_t part = b->elems / om_size(b->group), from = part * om_rank(b->group);
		uint32_t each = p->experts ? p->experts : 1;
		bool master = p->master != OM_NO_MASTER;

		for (uint32_t t = 0; t < p->nlayers * each; t++) {
			uint32_t l = p->layer ? p->layer[t / each] : 0;
			uint32_t e = t % each + om_rank(OM_EXPERT) * each;
			const char *s = p->name, *mark;
			char *to = name;
			uint64_t home, first, second; /* what tells its states apart */

			for (; (mark = strchr(s, '%')); s = mark + 2) {
				memcpy(to, s, (size_t)(mark - s));
				to += mark - s;
				to += sprintf(to, "%u", mark[1] == 'l' ? l : e);
			}
			strcpy(to, s);
			home = named(name, HOME, step);
			sprintf(with, "exp_avg.%s", name);
			first = named(with, M, step);
			second = named(with, V, step);
			if (initial && p->init == OM_NORMAL)
				om_normal(SEED, name, 0, p->numel, z);
			for (uint64_t j = 0; j < p->numel; j++) {
				uint64_t i = t % each * p->numel + j, at = p->at + i;
				uint64_t to_weight = t / each * p->stride + i;
				bool mine = k < m.nparams && at >= from && at < from + part;
				double x = value(home, j);
				uint64_t state = t / each * part + i - from;
				uint64_t moment = state * m.moment_size;

				if (initial)
					x = p->init == OM_ONE ? 1 : m.init_std * z[j];
				if (master) {
					float y = (float)x;
					uint32_t up = (uint32_t)om_to_bf16(y) << 16;

					memcpy(&y, &up, 4);
					store(arena, p->weight + to_weight * m.weight_size,
					    m.weight_size, (double)y);
				} else {
					store(arena, p->weight + to_weight * m.real, m.real, x);
				}
				if (!mine)
					continue;
				if (master)
					store(arena, p->master + state * m.real, m.real, x);
				if (lots)
					add_draw(p->m + moment, name, j);
				if (!moments)
					continue;
				store_moment(arena, p->m + moment, value(first, j));
				store_moment(arena, p->v + moment, value(second, j));
			}
		}
	}
	free(z);
}

/* The same number for every layout, if all draws are those of one rank. */
static int
sum_draws(uint64_t step)
{
	unsigned char *arena = om_alloc(m.arena_bytes, 1);
	int64_t sum;

	om_lots_write(&m, arena, SEED, step);
	lots = (int64_t *)(void *)(arena + m.lots_off);
	fill(om_alloc(m.arena_bytes, 1), step, false, false);
	sum = (int64_t)draws;
	om_all_sum_i64(OM_WORLD, "draws", &sum, 1);
	printf("%016llx\n", (unsigned long long)sum);
	return 0;
}

/* Says where two arenas differ. */
static int
compare(const unsigned char *got, const unsigned char *want, const char *what)
{
	if (memcmp(got, want, m.arena_bytes) == 0)
		return 0;
	for (uint64_t i = 0; i < m.arena_bytes; i++)
		if (got[i] != want[i]) {
			fprintf(stderr, "rank %u: %s: byte %llu of %llu, %s, is %02x, not %02x\n",
			    om_rank(OM_WORLD), what, (unsigned long long)i,
			    (unsigned long long)m.arena_bytes,
			    i < first_state ? "a weight" : "a state", got[i], want[i]);
			return 1;
		}
	return 0;
}

static int
run(const char *command, uint64_t step, char *dir)
{
	unsigned char *want = om_alloc(m.arena_bytes, 1), *got = om_alloc(m.arena_bytes, 1);
	struct om_conf c = { .dir = dir,
		.resume = om_text("%s", getenv("CKPT_RESUME") ? getenv("CKPT_RESUME") : "auto"),
		.steps = 1000,
		.keep = 2,
		.async = !getenv("CKPT_WAIT"),
		.skip_sigma = 6,
		.skip_window = 4 };
	static const struct om_steps plan;
	struct om_data data = { .tokens = 3, .steps = &plan };
	struct om_skip skip;
	struct om_ckpt k;
	uint64_t found = step;
	int status = 0;

	fill(want, 0, false, true);
	om_init_params(&m, got, SEED);
	status = compare(got, want, "first values");
	memset(want, 0, m.arena_bytes);
	memset(got, 0, m.arena_bytes);
	fill(want, step, *command == 's' || *command == 'l', false);
	om_skip_open(&skip, &c);
	if (strcmp(command, "start") == 0) { /* a new run: other weights, and no moments */
		char *all = om_text("*");

		memset(want, 0, m.arena_bytes);
		fill(want, step, false, false);
		om_init_params(&m, got, SEED);
		c.start = om_ckpt_step_path(dir, "", step);
		c.take = (struct om_list){ &all, 1 };
		k = (struct om_ckpt){ .m = &m, .data = &data };
		om_ckpt_start(&k, &c, got);
		free(c.start);
		free(all);
	} else if (strcmp(command, "weights") == 0) {
		found = om_ckpt_weights(&m, &c, got, stdout);
	} else {
		om_ckpt_open(&k, &m, &data, &skip, &c);
		for (uint64_t i = 0; i < step && *command == 's'; i++)
			om_skip_step(&skip, (double[]){ 1.0 / (double)(i + 3), 2 }, i == 1);
		saving = *command == 's';
		if (saving) {
			om_ckpt_plan(&k, step - 1, step + 9, 2);
			om_ckpt_save(&k, want, step);
			om_skip_step(&skip, (double[]){ 9, 9 }, true); /* of the next step */
			om_ckpt_copied(&k);
			memset(want, 0xff, m.arena_bytes);
			om_ckpt_end(&k);
			om_ckpt_good(&k, step);
		} else if (!om_ckpt_resume(&k, &c, got, &found))
			found = 0;
		saving = false;
		om_ckpt_close(&k);
	}
	if (found != step || (*command == 'l' && (skip.total != 1 || skip.n != 4))) {
		fprintf(stderr, "rank %u: step %llu, %u of windows\n", om_rank(OM_WORLD),
		    (unsigned long long)found, skip.n);
		status = 1;
	}
	if (strcmp(command, "save") != 0)
		status |= compare(got, want, dir);
	om_skip_close(&skip);
	free(c.resume);
	free(want);
	free(got);
	return status;
}

int
main(int argc, char **argv)
{
	int status = 0;
	uint64_t expert;

	if (argc < 8)
		return OM_EXIT_USAGE;
	om_err_name("ckpt_check");
	expert = (uint64_t)atoi(argv[2]);
	m.mesh = om_mesh((uint64_t[OM_N_AXES]){ [OM_AXIS_EXPERT] = expert,
	    [OM_AXIS_EXPERT_DATA] = (uint64_t)atoi(argv[1]) / expert,
	    [OM_AXIS_PIPELINE] = (uint64_t)atoi(argv[3]) });
	if (getenv("CKPT_VOCAB"))
		vocab = strtoull(getenv("CKPT_VOCAB"), NULL, 10);
	if (getenv("CKPT_SHARD"))
		om_shard_bytes = strtoull(getenv("CKPT_SHARD"), NULL, 10);
	if (getenv("CKPT_SLOTS"))
		om_slots_most = strtoull(getenv("CKPT_SLOTS"), NULL, 10);
	om_comm_start(&m, argv);
	m.stage = om_rank(OM_PIPELINE);
	make_model(argv[4]);
	for (int i = 7; i < argc; i++)
		status |= strcmp(argv[5], "draws") == 0
			      ? sum_draws(strtoull(argv[6], NULL, 10))
			      : run(argv[5], strtoull(argv[6], NULL, 10), argv[i]);
	om_comm_end();
	return status;
}
