/*
 * The runtime's table of contents, which begins in om_host.h: what its files offer one another.
 * om.h is the contract with generated code; nothing here is known outside this folder and its
 * tests.
 *
 *   om_main -> conf -> data, ckpt, log, skip -> eval, train, generate
 */
#ifndef OM_RT_H
#define OM_RT_H

#include <pthread.h>
#include <signal.h>
#include <stdio.h>

#include "file.h"
#include "om.h"
#include "om_host.h"

/*
 * How a trainer ends, for who started it: an error that stays one, a wrong command line; what may
 * go on from its checkpoint: it was asked to end and saved, a rank or the device was lost.
 */
enum { OM_EXIT_USER = 1, OM_EXIT_USAGE = 2, OM_EXIT_STOPPED = 3, OM_EXIT_LOST = 4 };
#define OM_STEPS_LAST 1000000000 /* the most steps that a run may have */
#define OM_NO_STEP UINT64_MAX    /* of what has no step; a bound of all steps */

/* ---- RANKS/comm.c: what the runtime asks of the other ranks; the rest is in om_comm.h -------- */

/*
 * Joins the ranks of the model's layout; with no launcher, has them started, and does not return
 * but ends as they do. From here on only rank 0 is seen on stdout.
 */
void om_comm_start(const struct om_model *m, char **argv);
void om_comm_end(void); /* by all ranks */
/* By all ranks: from here on a signal to who started them saves. */
void om_comm_ready(void);
/* Ends all ranks, naming one that has other bytes here than rank 0; what: "data", "run.yaml". */
void om_agree(const char *what, const void *p, size_t n);
/* Which of the processes that a launcher may have started tells what all of them know. */
bool om_comm_first(void);
void om_comm_timeout(double seconds); /* after so long, a rank that gets no answer ends all */
/* So many threads a rank use this machine's cores once; 0: no ranks share them. */
uint32_t om_comm_threads(void);
uint32_t om_comm_members(void);    /* ranks on this machine */
const char *om_comm_library(void); /* what sums over ranks, "NCCL 2.28.9"; "": this code */
/*
 * Where ranks have devices with memory of their own (one, nccl): which of its machine's ranks this
 * is; the device is there, and by it they join; it is waited for, and may itself wait for others.
 */
uint32_t om_comm_local(void);
void om_comm_device(void);
void om_comm_needs(char needs[64], char here[64]); /* as om_device_needs, to join several */
void om_comm_waits(bool begins);
/* By om_die alone: whether no rank of this machine spoke before; ends all ranks. */
bool om_comm_speaks(void);
_Noreturn void om_comm_abort(int status, bool spoke);
/*
 * Of the whole world, by all ranks in one order. Memory here is the host's, and what: the
 * operation, for messages.
 */
bool om_any(const char *what, bool said);                 /* whether any rank says so */
void om_barrier(const char *what);                        /* returns once all have called it */
void om_bcast(const char *what, void *p, uint64_t bytes); /* of rank 0's */
/* All ranks' bytes, one after the other in order, and a 0; free() it. NULL on all but rank 0. */
char *om_gather(const char *what, const void *p, uint64_t bytes, uint64_t *total);

/* ---- TARGET/device.c: what computes, and the memory it computes in --------------------------- */

/*
 * Takes the device; threads of the host, 0: all. What is missing ends the process, so whatever a
 * user can have got wrong is looked at before.
 */
void om_device_start(uint64_t threads);
/*
 * The arena: all of a trainer's memory, zeroed; where there is not enough, that ends the process,
 * saying how much there is. Puts, parts and gets happen in the order they are asked for; only a get
 * waits. Before om_device_start there are puts and gets alone, of an arena of the host's.
 */
unsigned char *om_arena_new(const struct om_model *m);
/*
 * The arena of a command that moves weights between files and computes nothing: it is in the host's
 * memory whatever the target, and no device is started. Takes what weights and masters need.
 */
unsigned char *om_arena_host(const struct om_model *m);
void om_put(unsigned char *arena, uint64_t off, const void *src, size_t n);
void om_get(const unsigned char *arena, uint64_t off, void *dst, size_t n);
void om_copy(void *to, const void *from, size_t n); /* within the device; they don't overlap */
void *om_spare_new(uint64_t bytes); /* beside the arena; NULL: the device has none to spare */
void om_spare_free(void *p);
bool om_arena_has(const void *p); /* of a device with memory of its own: it is there */
/*
 * Copies of the arena for one thread beside the one that runs steps: that asks for gets and waits
 * for them, into slots that it was given here; begin and end are the other's. What is got is as it
 * was at begin; it must not change before end, and what is asked for after that waits for the gets.
 */
void *om_aside_new(size_t bytes, uint32_t slot); /* slots come in order; NULL: no memory */
void om_aside_free(void *p);
void om_aside_begin(void);
void om_aside_get(const unsigned char *arena, uint64_t off, void *to, size_t n, uint32_t slot);
void om_aside_wait(uint32_t slot); /* until the slot has all that it was to get */
void om_aside_end(void);           /* all gets are asked for */
/* The parts that steps consist of; each is one graph of a device that has them. */
enum om_part {
	OM_RUN_INIT,
	OM_RUN_ZERO,
	OM_RUN_MICROBATCH, /* + enum om_of */
	OM_RUN_FIRST = OM_RUN_MICROBATCH + OM_FIRST,
	OM_RUN_ONLY = OM_RUN_FIRST + OM_LAST,
	OM_RUN_UPDATE,
	OM_RUN_EVALUATE,
	OM_RUN_DECODE,
	OM_RUN_PROMPT,
	OM_N_PARTS,
};
void om_run(const struct om_model *m, enum om_part part, unsigned char *arena);
void om_part(const struct om_model *m, enum om_part part, unsigned char *arena); /* its launches */
/* A pass of the chunk whose slot it is: of a phase, of a microbatch (enum om_of); or evaluation. */
void
om_run_pass(const struct om_model *m, enum om_phase phase, unsigned char *arena, int slot, int of);
void om_run_eval(const struct om_model *m, unsigned char *arena, int slot);
/*
 * What a step gave, copied after its parts and before what is asked for later. A result stands
 * until that of the step om_steps_most() later is sent: so many may be under way, 1 where om_run
 * is over when it returns.
 */
enum { OM_STEPS_MOST = 2 };
struct om_result {
	double ctl[OM_N_CTL];
	uint64_t stat[]; /* the arena's from stat_off on */
};
uint64_t om_steps_most(void);
void om_result_send(const struct om_model *m, const unsigned char *arena, uint64_t step);
const struct om_result *om_result_wait(uint64_t step);
/* Where the copy has what lies at off, among the statistics; a number there. */
const void *om_stat(const struct om_model *m, const struct om_result *r, uint64_t off);
double om_stat_f64(const struct om_model *m, const struct om_result *r, uint64_t off);
/* Draws a tensor's first values as om_normal does; false: the device leaves it to the host. */
struct om_tensor;
bool om_device_normal(const struct om_model *m, unsigned char *arena, const struct om_tensor *t,
    uint64_t seed, uint64_t name);
void om_profile_end(void);          /* adds what was launched while om_profile was set to om_op */
void om_device_text(char text[64]); /* "2 threads", "NVIDIA H200" */
/* What a trainer needs beside the processor, and what of it is here; "": nothing. */
enum { OM_NEEDS = 320 };
void om_device_needs(char needs[OM_NEEDS], char here[OM_NEEDS]);
/* Bytes in use on the device, the arena among them, and all it has; 0: not known. */
void om_device_memory(uint64_t *used, uint64_t *total);

/* ---- sched.c: learning rate ------------------------------------------------------------------ */

enum om_schedule {
	OM_COSINE,
	OM_LINEAR,
	OM_CONSTANT,
	OM_WSD,
	OM_INVERSE_SQRT,
	OM_POWER,
	OM_WSDS,
	OM_STAGES
};
#define OM_DECAYS "linear cosine minus_sqrt exponential"
#define OM_PLACES 9007199254740992 /* the most that lengths and places may be */
enum om_decay { OM_DECAY_LINEAR, OM_DECAY_COSINE, OM_DECAY_MINUS_SQRT, OM_DECAY_EXPONENTIAL };
struct om_lr_stage {
	uint64_t length;
	int shape;       /* enum om_decay */
	double from, to; /* parts of the peak; `to` is reached in its last step */
};
enum om_unit { OM_STEPS, OM_TOKENS };
struct om_lr {
	int schedule;       /* enum om_schedule */
	int unit;           /* enum om_unit, of all lengths and places */
	uint64_t length;    /* of the schedule */
	bool ends_with_run; /* that is the run's */
	double peak, final;
	uint64_t warmup, decay;
	int decay_shape;     /* enum om_decay */
	uint64_t decay_from; /* place whose rate is the last of the schedule, 0: none */
	uint64_t reference;  /* of a power law: place up to which it stays at the peak */
	double exponent;
	struct om_lr_stage *stage; /* of OM_WSDS and OM_STAGES */
	uint32_t nstages;
};
/* The rate at a place from 1 to the schedule's length; beyond, that of the last. */
double om_lr_at(const struct om_lr *lr, uint64_t at, uint64_t length);
/*
 * The stages of WSD-S (arXiv 2410.05192): n periods, each of which stays at its part of the peak
 * (NULL: 1) and decays to lr->final in its last lr->decay, the first one after the warm-up.
 */
void om_lr_periods(struct om_lr *lr, const uint64_t *length, const double *peak, uint32_t n);

/* ---- om_data.h: what is read: files, sources of tokens, their order, reading ahead ---------- */

#include "om_data.h"

/* ---- key.c, conf.c, conf_rules.c: run.yaml --------------------------------------------------- */

/* What data.format may be, in this order. */
#define OM_FORMATS "auto bytes uint8 uint16 uint32 uint64 npy llmc megatron"
enum om_filetype { OM_AUTO, OM_RAW, OM_U8, OM_U16, OM_U32, OM_U64, OM_NPY, OM_LLMC, OM_MEGATRON };
#define OM_PACKINGS "none truncate fragment"
enum om_packing { OM_STREAM, OM_TRUNCATE, OM_FRAGMENT };
#define OM_NONE UINT64_MAX /* of a whole number that may be none */
#define OM_ORDERS "shuffle sequential curriculum interleave"
enum om_order { OM_SHUFFLE, OM_SEQUENTIAL, OM_CURRICULUM, OM_INTERLEAVE };
#define OM_UNITS "tokens sequences documents"
enum om_of_mix { OM_OF_TOKENS, OM_OF_SEQUENCES, OM_OF_DOCUMENTS };
struct om_list {
	char **a;
	uint32_t n;
};
struct om_set {              /* token files that are one stream, or a mix of such sets */
	const char *section; /* of run.yaml, for messages */
	struct om_list paths;
	int format, order;
	uint64_t eos;         /* the token that ends a document, OM_NONE: there is none */
	uint64_t bos;         /* the one that begins each, OM_NONE: there is none */
	bool cut;             /* the last token of a document has no label */
	bool filter;          /* sequences that repeat themselves have no labels */
	int packing;          /* enum om_packing */
	uint64_t block;       /* tokens that are shuffled as one, 0: those of a sequence */
	struct om_list masks; /* files that say which tokens are labels, one for each; none: all */
	/* of an evaluation */
	uint64_t sequences;       /* that are taken, 0: all, OM_NONE: as many as of eval.paths */
	struct om_list questions; /* files of multiple choice, in place of paths */
	/* of a mix: what it is of, what it is counted in, and how much; 0: all there is. Of eval:
	   the sets beside it */
	struct om_set *source;
	uint32_t nsources; /* 0: it is none */
	int unit;
	uint64_t size;
	/* of a source of a mix, or a set of eval */
	char *name;
	uint32_t where; /* conf.c's: where its keys were given */
	/* of a source of a mix */
	double weight, repeat; /* weight NAN: by its size */
};
enum om_batch_lr { OM_LR_SAME, OM_LR_ROOT };
enum om_weights { OM_OWN_WEIGHTS, OM_AVERAGE_WEIGHTS };
struct om_conf {
	struct om_set data, eval;
	uint64_t steps, seed;
	struct om_lr lr;
	struct om_list periods, peaks, stages, groups; /* of lr, as they are given */
	struct om_list sizes, skips;                   /* of batch and data, which are plan */
	int batch_lr;                                  /* enum om_batch_lr */
	struct om_steps plan;
	struct om_rate *rate; /* [groups.n] */
	double skip_sigma;
	uint64_t skip_window, skip_most, rollbacks;
	uint64_t watchdog; /* seconds */
	uint64_t eval_every;
	bool eval_start;
	int eval_of;          /* enum om_weights */
	double average_decay; /* NAN: a mean */
	uint64_t average_from;
	char *tokenizer;
	char *dir, *resume, *start;
	struct om_list take, leave; /* patterns of tensors' names */
	uint64_t every, keep, keep_every;
	struct om_list saves; /* steps, as they are given */
	uint64_t *given;      /* [saves.n] */
	bool async, ignore_data;
	uint64_t log_every;
	char *metrics, *tensorboard;
	uint64_t threads;
	uint64_t timeout; /* seconds */
};

/* A row of key.def, which says what the members are. */
enum om_kind { OM_WHOLE, OM_NUMBER, OM_YESNO, OM_TEXT, OM_LIST, OM_CHOICE };
struct om_key {
	const char *name;
	enum om_kind kind;
	bool source; /* of each source of a mix, or set of eval: its name has NAME for any */
	size_t at;   /* in struct om_conf, or a source's struct om_set */
	double min, max;
	const char *initial, *choices, *doc; /* initial is NULL: the key is required */
};
enum {
	OM_NKEYS = 0
#define KEY(name, kind, member, min, max, initial, choices, doc) +1
#define SOURCE KEY
#define FIXED(name, lua)
#include "key.def"
#undef KEY
#undef SOURCE
#undef FIXED
};
extern const struct om_key om_keys[OM_NKEYS];
/* The sections whose keys the user names: what stands before, what they are, a struct om_set. */
struct om_named {
	const char *prefix, *what;
	size_t at; /* in struct om_conf: the set whose sources they are */
};
enum { OM_NNAMED = 2 };
extern const struct om_named om_named[OM_NNAMED];
const struct om_named *om_key_named(const char *name); /* that a name is in, NULL: none */
/* The Lua field that owns a name which is fixed in the trainer, NULL: it isn't. */
const char *om_key_fixed(const char *name);
/* How a key has to do with a name of run.yaml: not, it is the key's, or of a section above it. */
enum om_match { OM_APART, OM_SAME, OM_ABOVE };
enum om_match om_key_match(const char *key, const char *name);
/* The closest key, or section, within a third of the name's length; NULL: none. A static text. */
const char *om_key_closest(const char *name, bool section);
/* The keys of a section, or of "" the first parts of all: "a, b, c". */
void om_keys_of(const char *section, char *text, size_t size);
const struct om_key *om_key_find(const char *name);       /* name is one */
void om_key_rule(const struct om_key *k, char text[128]); /* "a number from 0 to 1" */
bool om_key_may_be_none(const struct om_key *k);
int om_key_choice(const char *choices, const char *s); /* index of s in "a b c", -1: not there */
const char *om_key_word(const char *choices, int i);   /* the i-th of them, a static text */
/*
 * Reads path and then "key=value" overrides for "train", "eval" or "data". Prints every error and
 * gives their number.
 */
int om_conf_load(struct om_conf *c, const struct om_model *m, const char *command, const char *path,
    int nover, char **over);
struct om_at om_conf_given(const char *key); /* where it was given last; line 0: nowhere */
/* Where a source of a mix or set of eval was named, or a key of it was given. */
struct om_at om_conf_named(const struct om_set *s, const char *key);
bool om_conf_evaluates(const struct om_conf *c); /* whether there is anything to evaluate on */
/* Where the learning rate's schedule is in a step, in its unit; seq: tokens of a sequence. */
uint64_t om_conf_lr_place(const struct om_conf *c, uint64_t step, uint64_t seq);
/* conf_rules.c: rules between keys, and values that follow from others. */
void om_conf_rules(struct om_conf *c, const struct om_model *m);
/* What om_conf_load has read from its path goes to a file; false: errno. */
bool om_conf_copy(const char *path);
void om_conf_help(FILE *f); /* the table of keys */
/* The bits of each number and choice; 0 of texts and threads, which ranks may have their own of. */
void om_conf_numbers(const struct om_conf *c, uint64_t value[OM_NKEYS]);
void om_conf_free(struct om_conf *c);

/* ---- init.c: checkpoint tensors and their first values --------------------------------------- */

/* One tensor of the checkpoint: a repetition and an expert of a stored parameter. */
struct om_tensor {
	const struct om_param *p;
	uint32_t rep, expert;
	uint64_t first; /* its first element within the repetition of the stored parameter */
};
/* Steps through all of them in a fixed order; start with { NULL }. */
bool om_tensor_next(const struct om_model *m, struct om_tensor *t);
uint64_t om_tensor_count(const struct om_model *m);
char *om_tensor_name(const struct om_tensor *t); /* %l and %e filled in; free() it */
/*
 * Elements [*first, *end) of each repetition of a stored parameter that are this rank's: it keeps
 * their master and moments, and writes them to checkpoints. A buffer is the first data rank's.
 */
void
om_param_part(const struct om_model *m, const struct om_param *p, uint64_t *first, uint64_t *end);
/* The columns of matrices that Muon steps a parameter by; 0: AdamW steps it. */
uint64_t om_muon_cols(const struct om_model *m, const struct om_param *p);
/* How many elements have one number in common in m, v or master. */
uint64_t om_state_each(const struct om_model *m, const struct om_param *p, uint64_t state);
/* Where element i of repetition rep of it lies; state: the parameter's m, v or master. */
uint64_t om_state_at(
    const struct om_model *m, const struct om_param *p, uint64_t state, uint32_t rep, uint64_t i);
uint64_t om_weight_at(const struct om_model *m, const struct om_param *p, uint32_t rep, uint64_t i);
/* Where a checkpoint's value of it lies: in its master, or the weight where there is none. */
uint64_t om_home_at(const struct om_model *m, const struct om_param *p, uint32_t rep, uint64_t i);
/* Bytes of an element of its weight: those of om_real where it has no master. */
size_t om_param_size(const struct om_model *m, const struct om_param *p);
/*
 * Puts n weights, om_real, at element i of a repetition of a stored parameter. Where it has a
 * master, their rounding; and they themselves in the master, as far as that is this rank's.
 */
void om_put_weights(const struct om_model *m, unsigned char *arena, const struct om_param *p,
    uint32_t rep, uint64_t i, const void *x, size_t n);
/* The nearest bf16, ties to even: the upper half of a float's bits. */
uint16_t om_to_bf16(float x);
/* Puts n floats, each rounded to that, in so many bytes: 2, or a float's 4. */
void om_put_bf16(unsigned char *arena, uint64_t off, const float *x, uint64_t n, size_t size);
/* Normal (cut at 3 sigma) or one, by seed, name and index alone. */
void om_init_params(const struct om_model *m, unsigned char *arena, uint64_t seed);
/* What random routers draw by in the next microbatch; sequence: the number of its first one. */
void
om_draw_write(const struct om_model *m, unsigned char *arena, uint64_t seed, uint64_t sequence);
/* What roundings of moments are drawn by in a step. */
void om_lots_write(const struct om_model *m, unsigned char *arena, uint64_t seed, uint64_t step);
/* Elements [i, i+n) of the tensor with that name, standard deviation 1. */
void om_normal(uint64_t seed, const char *name, uint64_t i, uint64_t n, double *z);

/* ---- document.c: documents within sequences -------------------------------------------------- */

/* Ends the process where documents of f have to be known, and are not. */
void om_documents_check(struct om_source *s, struct om_file *f);
/* Whether a document ends between two tokens that follow each other, by data.eos and data.bos. */
bool om_document_ends(const struct om_source *s, int32_t id, int32_t next);
/* Gives the tokens of each of a file's documents, by its index or by these; false: not known. */
bool om_documents_each(
    struct om_source *s, struct om_file *f, void (*each)(void *arg, uint64_t tokens), void *arg);
/* Which of n tokens of f, from its token `from` on, begin a document, by its index or by these. */
void om_documents_find(struct om_source *s, struct om_file *f, uint64_t from, size_t n,
    const int32_t *id, bool *begins);
/* By begins [S+1], what om_data_read gives: labels that are cut, and first. */
void om_documents_of(const struct om_data *d, const bool *begins, int32_t *label, int32_t *first);
/* Operations that masks spare it in so many sequences; first may be NULL. */
double om_documents_spared(const struct om_model *m, const int32_t *first, uint64_t sequences);
/* Tells a model that masks documents those of a microbatch, by first; NULL: of whole sequences. */
void om_documents_put(const struct om_model *m, unsigned char *arena, const int32_t *first);

/* ---- crc.c ----------------------------------------------------------------------------------- */

/* CRC-32C (Castagnoli) of more bytes; start with 0. soft: without the processor's instruction. */
uint32_t om_crc32c(uint32_t crc, const void *p, size_t n);
uint32_t om_crc32c_soft(uint32_t crc, const void *p, size_t n);

/* ---- safetensors.c: one shard ---------------------------------------------------------------- */

struct om_format {
	const char *name, *dtype; /* "fp32", and what such a file calls it, "F32" */
	uint64_t bits;
};
const struct om_format *om_format(const char *name); /* of format.def; NULL: it has none */
enum { OM_ST_DIMS = 8 };
struct om_st_tensor {
	char *name;
	const char *dtype; /* "F32", "F64", of foreign files others too */
	uint64_t dim[OM_ST_DIMS];
	int ndims;
	uint64_t begin, end; /* bytes from the start of the file's data */
};
struct om_st {
	int fd;
	uint64_t data, size; /* where the data begin; of the whole file */
	struct om_st_tensor *tensor;
	uint32_t n;
};
/* Writes the header of n tensors whose begin and end are set; false: errno. */
bool om_st_write_header(int fd, const struct om_st_tensor *t, uint32_t n);
/* Opens and checks a shard; NULL, or what is wrong with it (a static text). */
const char *om_st_open(struct om_st *st, const char *path);
const struct om_st_tensor *om_st_find(const struct om_st *st, const char *name);
void om_st_close(struct om_st *st);
/* Gives the descriptor back, of which there are not many; and opens the same file again. */
void om_st_rest(struct om_st *st);
const char *om_st_again(struct om_st *st, const char *path);
/* Widens n numbers of the dtype, which is F32, BF16 or F16, each to the bit; false: of another. */
bool om_st_floats(const char *dtype, const void *p, size_t n, float *x);
bool om_pread_all(
    int fd, void *p, size_t n, uint64_t off); /* false: errno, 0 where the file ends early */

/* ---- skip.c: steps that are left out --------------------------------------------------------- */

struct om_skip {
	double sigma; /* 0: off, every step must be finite */
	uint32_t window, n;
	double *last[2]; /* losses and gradient norms of the last n accepted steps, oldest first */
	uint64_t total, row; /* skipped since the run began, and in a row up to now */
	uint64_t back, left; /* how often it went back, and the steps whose data it left out then */
	uint64_t left_sequences; /* which these are */
	uint64_t fresh;          /* updates before the optimizer's moments began, at zero */
};
void om_skip_open(struct om_skip *s, const struct om_conf *c);
void om_skip_close(struct om_skip *s);
/* The greatest loss and norm of the next step; infinity until half the window is there. */
void om_skip_limits(const struct om_skip *s, double limit[2]);
/* A step has been done: x is its loss and norm. */
void om_skip_step(struct om_skip *s, const double x[2], bool skipped);

/* ---- ckpt.c, ckpt_save.c, ckpt_load.c: a checkpoint of many shards --------------------------- */

extern uint64_t om_shard_bytes; /* of a shard, unless one tensor has more: 4 GiB */

/* Memory of the host that what is copied out of an arena passes through, in pieces. */
struct om_slots {
	unsigned char **slot;
	uint32_t n;
};
struct om_ckpt {
	const char *dir; /* NULL or "": keep none */
	uint64_t keep;
	bool async;           /* saves are written beside the steps that follow */
	struct om_save *save; /* under way; NULL: none is */
	struct om_beside beside;
	struct om_slots slots;
	unsigned char *spare;  /* of the device, for a copy of this rank's part; NULL: none */
	uint64_t part, bytes;  /* this rank's in an arena, all ranks' on the disk */
	uint64_t keep_every;   /* those of every so many steps are kept for ever, 0: none */
	const uint64_t *given; /* so are those of these steps */
	uint32_t ngiven;
	double held;   /* seconds that the main thread was at the last save */
	int lock;      /* the directory, held against a second trainer */
	bool rollback; /* those later than the one resumed from are bad, and pruned as others are */
	const struct om_model *m;
	const struct om_data *data; /* NULL: only weights are loaded */
	bool average;               /* and their averages */
	struct om_skip *skip;       /* saved and loaded with the rest; NULL: nothing to save */
	char *resumed;              /* path of the one resumed from, NULL: none */
	uint64_t first;             /* its step */
	uint64_t good;              /* those of steps below this one gave finite numbers */
	bool due;                   /* there may be some to prune */
};
/* Makes and locks the directory, and removes what a killed run left half-written. */
void om_ckpt_open(struct om_ckpt *k, const struct om_model *m, const struct om_data *d,
    struct om_skip *skip, const struct om_conf *c);
/* Loads by checkpoint.resume into the arena; false: there is nothing to resume, *step is 0. */
bool
om_ckpt_resume(struct om_ckpt *k, const struct om_conf *c, unsigned char *arena, uint64_t *step);
/* A new run, whose first values are drawn, begins with the weights of checkpoint.start. */
void om_ckpt_start(struct om_ckpt *k, const struct om_conf *c, unsigned char *arena);
/*
 * Loads the weights alone, touches nothing on disk, says which to f; gives the step. None is an
 * error.
 */
uint64_t
om_ckpt_weights(const struct om_model *m, const struct om_conf *c, unsigned char *arena, FILE *f);
/* The same, of a step directory, or the newest of a directory of them; how: what names another. */
uint64_t om_ckpt_weights_at(const struct om_model *m, const char *path, const char *how, int of,
    unsigned char *arena, FILE *f);
bool om_ckpt_is_one(const char *path);   /* a step's directory, and not one of several */
void om_ckpt_check_dir(const char *dir); /* ends the process where it is a step's */
/*
 * Saves the state of a step; where that is async, it is only begun: the next update has to come
 * after om_ckpt_copied, and the checkpoint is there after om_ckpt_end. Both do nothing where no
 * save is under way; end and save are called by all ranks.
 */
void om_ckpt_save(struct om_ckpt *k, const unsigned char *arena, uint64_t step);
void om_ckpt_prepare(struct om_ckpt *k); /* gets memory for that, beside the steps */
void om_ckpt_copied(struct om_ckpt *k);
bool om_ckpt_writes(const struct om_ckpt *k); /* whether this rank's part is still being written */
void om_ckpt_end(struct om_ckpt *k);
bool om_ckpt_given(const struct om_ckpt *k, uint64_t step); /* whether one is asked for there */
/* Ends the process where there is no room for another one. */
void om_ckpt_room(const struct om_ckpt *k);
/* The same, before the first step, and says how many of those to come have none. */
void om_ckpt_plan(const struct om_ckpt *k, uint64_t done, uint64_t steps, uint64_t every);
/* The weights after `step` have given finite numbers: the oldest ones beyond keep may go. */
void om_ckpt_good(struct om_ckpt *k, uint64_t step);
/*
 * The newest one of at most that step, on which finite numbers followed, and its step; NULL: none.
 * By all ranks, which hear the same; a save is ended first. free() it.
 */
char *om_ckpt_back(struct om_ckpt *k, uint64_t most, uint64_t *step);
/*
 * What to do after numbers that were not: "resume from ...", which one is suspect; free() it. By
 * all ranks: a save is ended first.
 */
char *om_ckpt_advice(struct om_ckpt *k);
/* Path of the newest checkpoint in the directory, NULL: none; free() it. */
char *om_ckpt_newest(const struct om_ckpt *k);
void om_ckpt_close(struct om_ckpt *k);

/* What saving and loading share. */
enum { OM_CKPT_FORMAT = 1 };
/* A tensor, or the slice of it that is this rank's. */
struct om_entry {
	struct om_st_tensor t; /* name and shape of the whole, bytes of the slice in its shard */
	const struct om_param *p;
	uint64_t numel;      /* of the tensor: p's, or of Muon's row states its rows */
	uint64_t begin, end; /* elements of the tensor */
	uint32_t rep;        /* of the stored parameter */
	uint64_t first;      /* the slice's first element within that */
	uint64_t off;        /* in the arena */
	size_t size;         /* of a number there */
	int file;            /* 0 model, 1 optimizer */
	bool buffer;         /* it has no moments */
	uint32_t shard, crc;
};
/* What of a checkpoint this rank writes, or reads, in file order; *n: how many. */
enum om_entries { OM_TO_SAVE, OM_TO_LOAD };
struct om_entry *om_ckpt_entries(const struct om_model *m, enum om_entries which, uint32_t *n);
/*
 * All that a checkpoint holds, of all ranks and stages, in an order that is the same under every
 * layout. `off` is of this rank, and means nothing where there are several.
 */
struct om_entry *om_ckpt_whole(const struct om_model *models, uint32_t *n);
bool om_ckpt_is_average(const char *name);    /* of an average of weights */
const char *om_ckpt_moment(const char *name); /* what a moment's begins with; NULL: none */
void om_ckpt_entries_free(struct om_entry *e, uint32_t n);
void om_ckpt_shape(FILE *f, const struct om_st_tensor *t);
/* Its name in a shard: the tensor's, or of a slice NAME[first:end]; free() it. */
char *om_ckpt_slice_name(const char *tensor, uint64_t begin, uint64_t end, uint64_t numel);
/* Step of a name "step-000100", OM_NO_STEP: another name. */
uint64_t om_ckpt_step_of(const char *name);
/*
 * The greatest step below `below` that the directory holds, OM_NO_STEP: none; *count: how many it
 * has.
 */
uint64_t om_ckpt_newest_below(const char *dir, uint64_t below, uint64_t *count);
char *om_ckpt_step_path(const char *dir, const char *prefix, uint64_t step);
/*
 * The step directories that paths of the command line name, each with a 0 behind it, *size bytes in
 * all: a step's, or all of a directory in the order of their steps. By all ranks, which hear what
 * the first one found. free() it.
 */
char *om_ckpt_list(int n, char **path, uint64_t *size);
bool om_ckpt_remove(const char *path); /* a directory of plain files; false: errno */
/* The directories that a path lies in; whoever makes it says where they could not be. */
void om_ckpt_make_parents(const char *path);

/*
 * A checkpoint of any layout, tensor by tensor and without an arena, in one process. path is a
 * step's directory, or one of several, whose newest is taken; how: what names another; which it is
 * goes to f.
 */
struct om_reader;
struct om_reader *
om_reader_open(const struct om_model *models, const char *path, const char *how, FILE *f);
const struct om_entry *om_reader_entries(const struct om_reader *r, uint32_t *n);
/*
 * n elements of a weight, of as many bytes as are given back; from the first on in order, and all
 * of them, for its checksum's sake.
 */
size_t
om_reader_read(struct om_reader *r, const struct om_entry *e, uint64_t at, void *to, size_t n);
void om_reader_close(struct om_reader *r);
/* A checkpoint of another model: it has to have these weights, and no others. */
struct om_reader *
om_reader_foreign(const struct om_model *models, const char *path, const char *how, FILE *f);
bool om_reader_shape(const struct om_reader *r, const char *name, uint64_t dim[2]);
void om_reader_check(struct om_reader *r, const struct om_entry *e, uint32_t n);
/* A field of its model, a number; 0: it is not there. */
double om_reader_fact(const struct om_reader *r, const char *name);

/* ---- watch.c: what a run's numbers say of its health ----------------------------------------- */

/*
 * SpikeScore, as OLMo-core's: of the last OM_SPIKE_STEPS steps, the share in which loss or gradient
 * norm is 6 standard deviations over the mean of the OM_SPIKE_WINDOW before it, or is not finite.
 */
enum { OM_SPIKE_WINDOW = 128, OM_SPIKE_STEPS = 10000 };
struct om_spike {
	double window[2][OM_SPIKE_WINDOW]; /* losses, norms */
	uint64_t finite, steps, spikes;    /* seen; spikes: among the last ones */
	unsigned char was[OM_SPIKE_STEPS]; /* whether it was one */
};
double om_spike_step(struct om_spike *s, const double x[2]); /* loss and norm; gives the score */
enum { OM_TENSOR_NAME = 128 };
/*
 * The first tensor, by ranks, whose gradient has an element that is not finite, after a step; NULL:
 * none has. By all ranks; free() it.
 */
char *om_not_finite(const struct om_model *m, unsigned char *arena);

/* ---- watchdog.c: ends what does not move ----------------------------------------------------- */

void om_watchdog_start(double seconds); /* that a run may be at one place; 0: for ever */
/* Where it is from here on, a static text, or NULL where it waits for ranks; gives where it was. */
const char *om_watchdog_at(const char *what);
double om_watchdog_waited(void); /* seconds that were spent there at NULL */

/* ---- events.c: TensorBoard's event files ---------------------------------------------------- */

struct om_message { /* of protocol buffers, in memory */
	FILE *f;
	char *p;
	size_t n; /* of both right after fflush(f) */
};
struct om_events {
	FILE *file;
	char *path;
	struct om_message summary; /* the numbers of the step, f NULL: none yet */
};
/*
 * A new file in the directory, which is made, for a run that has done `step` steps: what files
 * there have of later ones counts no more. OM_NO_STEP: it only adds to them.
 */
void om_events_open(struct om_events *e, const char *dir, uint64_t step);
void om_events_number(struct om_events *e, const char *tag, double x);
void om_events_step(struct om_events *e, uint64_t step); /* writes the numbers since the last one */
void om_events_close(struct om_events *e);

/* ---- bar.c: how far a run is, on a terminal -------------------------------------------------- */

enum { OM_BAR_BLOCKS = 12 };
struct om_bar {
	bool unicode, colour;
	double loss[OM_BAR_BLOCKS]; /* means of so many steps, `span`, each */
	uint32_t n;
	uint64_t span, steps; /* steps: in `sum`, the next one's */
	double sum;
};
void om_bar_open(struct om_bar *b); /* by the environment */
void om_bar_loss(struct om_bar *b, double loss);
/* A bar of `room` columns between its ends, of which a share is full. */
void om_bar_print(const struct om_bar *b, int room, double share);
/* The losses so far behind a blank, in columns that it gives; print: or only gives them. */
int om_bar_blocks(const struct om_bar *b, bool print);

/* ---- log.c: console and metrics -------------------------------------------------------------- */

struct om_log {
	const struct om_model *m;
	const struct om_data *data; /* NULL: nothing is trained */
	const struct om_skip *skip; /* the same */
	FILE *metrics;              /* NULL: none */
	const char *path;
	struct om_events events; /* file NULL: none */
	struct om_spike spike;
	char of[64];                  /* before a tag there: of which layer or set it is */
	bool inside;                  /* an object of the line has just begun */
	bool wanted;                  /* numbers go to some file; as all ranks know */
	uint64_t every, steps, first; /* first: steps done before this run */
	bool live;                    /* a bar below the lines, on a terminal */
	struct om_bar bar;
	int width;                 /* of a terminal that is seen through a pipe, 0: there is none */
	bool cuts;                 /* routes may be cut */
	double cut[2];             /* routes since the last line: cut, and all */
	double start, last, drawn; /* seconds; of the last line, and of the bar */
	double pace;               /* seconds a step, smoothed */
	double ce;                 /* last loss */
	uint64_t tokens;           /* of the last step */
	struct om_result **stage;  /* statistics of each, on rank 0; of its own on others */
};
/*
 * All ranks call these, and rank 0 writes. A run without skip only adds to the metrics; with it, it
 * goes on in them after step.
 */
void om_log_open(struct om_log *l, const struct om_model *m, const struct om_data *data,
    const struct om_skip *skip, const struct om_conf *c, uint64_t step);
/* What of a step is the host's to tell. */
struct om_told {
	double lr, took, waited;   /* took, waited: seconds, of the step and of that for data */
	double spared;             /* operations that masks spare this rank's microbatches */
	uint64_t place, sequences; /* where its data begin, and how many they are */
	uint64_t all;              /* sequences of the run with this step */
	bool ramps;                /* steps differ in them */
	/* [ranks] microseconds that each was at work in the step, and not waiting for another */
	const int64_t *busy;
	double share;           /* of a whole step, which losses and norm of a result are of */
	const char *not_finite; /* whose gradient was no number, NULL: none's */
	/* shares of tokens that have no label, and of sequences that repeat themselves; < 0: none
	   can */
	double masked, repeated;
};
void
om_log_step(struct om_log *l, const struct om_result *x, uint64_t step, const struct om_told *told);
struct om_score;
void om_log_eval(struct om_log *l, uint64_t step, const struct om_score *const *score, uint32_t n);
void om_log_clear(void);            /* takes the bar off the screen, before a line */
void om_log_sync(struct om_log *l); /* metrics reach the disk */
void om_log_close(struct om_log *l);

/* ---- report.c, page.c: metrics as a page ----------------------------------------------------- */

int om_report(int argc, char **argv); /* files of metrics, or folders that have one */
/*
 * Writes a page of the folder page, "report.html": in place of a line "<!--@slot NAME-->" the file
 * of that name, or for "data" what data() writes.
 */
void om_page_write(FILE *f, const char *name, void (*data)(FILE *f, void *arg), void *arg);

/* ---- eval.c, quiz.c: sets that a model is measured on ---------------------------------------- */

/* What makes choices of different lengths comparable: nothing, their tokens, or their bytes. */
enum { OM_BY_NOTHING, OM_BY_TOKENS, OM_BY_BYTES, OM_BY };
struct om_score {
	const char *set;    /* its name, NULL: eval.paths */
	double loss, bits;  /* of a token, and of a byte of text; of questions, means over them of
				the right choices' */
	bool bytes;         /* bits is known, and right by bytes */
	uint64_t tokens;    /* that had a label */
	uint64_t questions; /* 0: it is of tokens */
	double right[OM_BY],
	    probability; /* shares that the right choice won, and means of its share */
	double seconds;
};
struct om_quiz;
struct om_tokenizer;
/*
 * Reads the questions of a set, and says what is wrong with them; t: of texts, which NULL takes for
 * bytes; bytes: of each token's text, NULL: they are not known.
 */
struct om_quiz *om_quiz_open(const struct om_model *m, const struct om_set *set, uint64_t seed,
    struct om_tokenizer *t, const uint32_t *bytes);
uint32_t om_quiz_crc(const struct om_quiz *q); /* of its files */
void om_quiz_say(const struct om_quiz *q);     /* prints its size */
bool om_quiz_run(const struct om_quiz *q, const struct om_model *m, unsigned char *arena,
    const volatile sig_atomic_t *stop, struct om_score *s);
void om_quiz_close(struct om_quiz *q); /* which may be NULL */

struct om_eval {
	struct om_eval_set *set;
	uint32_t n;
	bool average;    /* of these, in place of the weights */
	uint32_t *bytes; /* of each token's text, NULL: not known */
};
void om_eval_open(struct om_eval *e, const struct om_model *m, const struct om_conf *c);
/* What data_lost does where a set cannot be read; NULL: nothing. */
void om_eval_rescue(struct om_eval *e, char *(*rescue)(void *arg), void *arg);
/*
 * Measures the arena's weights on all sets and tells of it; clears statistics, changes nothing else
 * that a step reads. false: *stop came to some rank, nothing is known.
 */
bool om_eval_run(struct om_eval *e, const struct om_model *m, unsigned char *arena,
    const volatile sig_atomic_t *stop, struct om_log *log, uint64_t step);
void om_eval_close(struct om_eval *e);

/* ---- generate.c: what comes after a prompt --------------------------------------------------- */

struct om_sampling {
	double temperature; /* divides the logits; 0: the likeliest token, whatever the rest says */
	uint64_t top_k;     /* of these, that many likeliest stay; 0: all */
	double top_p;       /* of these, the fewest likeliest that have this much together */
	uint64_t seed;
	uint32_t sequence; /* of those that are generated, which draw apart */
};
struct om_row { /* a token, and where it stands in a sequence */
	int32_t token, position, sequence;
};
/*
 * n rows, of decode.n at most, of different sequences: their keys and values go to the caches, the
 * logits of the tokens after them to logit [n][vocab].
 */
void om_logits_after(const struct om_model *m, unsigned char *arena, const struct om_row *row,
    uint64_t n, double *logit);
/* The same, but the likeliest tokens alone, -1 where logits are not finite. */
void om_likeliest_after(const struct om_model *m, unsigned char *arena, const struct om_row *row,
    uint64_t n, int32_t *token);
struct om_prompt { /* the first tokens of a sequence */
	const int32_t *token;
	uint64_t n;
	uint32_t sequence;
};
/* They go to the sequences' caches, several at once; the trainer has a program for prompts. */
void om_prompts_put(
    const struct om_model *m, unsigned char *arena, const struct om_prompt *p, uint64_t n);
/* The token of a position, by its logits, seed, sequence and position alone; ties: the lower id. */
int32_t
om_choose(const struct om_sampling *s, uint64_t position, const double *logit, uint64_t vocab);

/* ---- step.c: the microbatches of a step, and of an evaluation -------------------------------- */

/*
 * What a step asks for on its way. go and settle may be NULL, a step is then always whole. A rank
 * that leaves out passes still sends and receives, so go has to say the same only on the ranks of a
 * stage, which meet within passes; settle has to on all.
 */
struct om_feed {
	uint64_t microbatches;              /* of the step, as many as the model's or fewer */
	void (*put)(void *arg, uint64_t i); /* its i-th microbatch and draws, before each pass */
	bool (*go)(void *arg);     /* before each pass; false: this and all others are left out */
	bool (*settle)(void *arg); /* whether no rank has left out any */
	void *arg;
};
/* A step, its ctl written; false: without its update, so weights and moments are as they were. */
bool om_run_step(const struct om_model *m, unsigned char *arena, const struct om_feed *f);
/* A forward pass of the microbatch in the arena, by all ranks: adds to the losses. */
void om_run_forward(const struct om_model *m, unsigned char *arena);
/* The loss of all ranks' passes together, once there are no more; the same on all. */
double om_run_forward_end(const struct om_model *m, unsigned char *arena);

/* ---- train.c, eval.c, survey.c, bench.c, hf.c, generate.c: commands -------------------------- */

int om_train(const struct om_model *m, struct om_conf *c, double start);
/* Of the checkpoints that paths name, steps or folders of them; with none by run.yaml. */
int om_eval(const struct om_model *m, struct om_conf *c, int npaths, char **path);
int om_survey(const struct om_model *m, const struct om_conf *c);
int om_generate(const struct om_model *m, int argc, char **argv);
void om_generate_help(void);
/* trace, html: files for pictures of a step, or NULL */
int om_bench(const struct om_model *m, uint64_t steps, const char *trace, const char *html);
unsigned char *om_bench_operators(const struct om_model *m, uint64_t steps); /* the arena */
/* Prompts of so many tokens, as many as there are rows, and so many tokens more. */
int om_bench_generate(const struct om_model *m, uint64_t prompt, uint64_t tokens);
int om_selftest(const struct om_model *m);
int om_export(const struct om_model *m, const char *dir, const char *from);
/* ---- average.c: averages of weights ---------------------------------------------------------- */

/* Every rank's parts of weights are its own to tell: the others hear them. */
void om_weights_gather(const struct om_model *m, unsigned char *arena);
void om_average_begin(const struct om_model *m, unsigned char *arena); /* they are the weights */
/* By how much a step's averages go towards the weights; where the trainer keeps none, nothing. */
void om_average_write(
    const struct om_model *m, const struct om_conf *c, unsigned char *arena, uint64_t step);
/*
 * For an evaluation: weights are the averages, where that is `there`, until it is called again
 * without; both are then to the bit what they were. By all ranks.
 */
void om_average_swap(const struct om_model *m, unsigned char *arena, bool there);
/* The mean of checkpoints' weights becomes one; of those that paths name the last ones, 0: all. */
int om_average(
    const struct om_model *models, const char *dir, int npaths, char **path, uint64_t last, int of);
/*
 * The whole model as one rank has it, each tensor a parameter of its own, of which entry[i] says
 * which of the n it is: what a checkpoint holds, and no arena but that.
 */
struct om_model *
om_whole(const struct om_model *models, const struct om_entry *e, uint32_t n, uint32_t *entry);
void om_whole_free(struct om_model *m);
/* Its arena becomes a checkpoint, of step 0, in a directory that has none. */
void om_whole_save(
    const char *operation, const struct om_model *m, const unsigned char *arena, const char *dir);
struct om_upcycle {   /* of copies that become experts */
	double noise; /* of each number, as a part of it */
	uint64_t seed;
};
/* up: NULL, the other model is this one. */
int om_import(
    const struct om_model *models, const char *from, const char *dir, const struct om_upcycle *up);
/*
 * updates: how many there have been with this step's; limit: of loss and norm, NULL: none; labels:
 * of all ranks, which the losses are divided by; sequences: of the step, global or fewer.
 */
void om_ctl_write(const struct om_model *m, unsigned char *arena, double lr, uint64_t updates,
    const double limit[2], uint64_t labels, uint64_t sequences);
#endif
