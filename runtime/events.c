/*
 * TensorBoard's event files: records of TFRecord, each of which holds an Event message in the wire
 * format of protocol buffers (the fields' numbers are those of tensorflow/core/util/event.proto and
 * framework/summary.proto). One record a step, and one write a record: a kill leaves whole ones.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "om_rt.h"

enum { VARINT, FIXED64, BYTES, FIXED32 = 5 }; /* wire types */
enum { EVENT_TIME = 1, EVENT_STEP, EVENT_VERSION, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_NUMBER = 2, SESSION_STATUS = 1, SESSION_START = 1 };

static void
message_open(struct om_message *m)
{
	if (!(m->f = open_memstream(&m->p, &m->n)))
		om_die("memory", "cannot hold a message: %s", strerror(errno));
}

static void
message_close(struct om_message *m)
{
	fclose(m->f);
	free(m->p);
}

static void
varint(FILE *f, uint64_t x)
{
	for (; x > 127; x >>= 7)
		putc((int)(x & 127) | 128, f);
	putc((int)x, f);
}

static void
field(FILE *f, int number, int wire)
{
	varint(f, (uint64_t)(number << 3 | wire));
}

static void
field_bytes(FILE *f, int number, const void *p, size_t n)
{
	field(f, number, BYTES);
	varint(f, n);
	fwrite(p, 1, n, f);
}

static void
field_u64(FILE *f, int number, uint64_t x)
{
	field(f, number, VARINT);
	varint(f, x);
}

/* TFRecord turns checksums, so that data which hold checksums keep good ones. */
static uint32_t
masked(const void *p, size_t n)
{
	uint32_t crc = om_crc32c(0, p, n);

	return (crc >> 15 | crc << 17) + 0xa282ead8;
}

/* A record with an event of now that has one field more, a message or text. */
static void
record(struct om_events *e, uint64_t step, int number, const void *p, size_t n)
{
	struct om_message event;
	struct timespec now;
	uint64_t size;
	uint32_t crc;
	double t;

	clock_gettime(CLOCK_REALTIME, &now);
	t = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
	message_open(&event);
	field(event.f, EVENT_TIME, FIXED64);
	fwrite(&t, sizeof t, 1, event.f);
	field_u64(event.f, EVENT_STEP, step);
	field_bytes(event.f, number, p, n);
	fflush(event.f);
	size = event.n;
	fwrite(&size, sizeof size, 1, e->file);
	crc = masked(&size, sizeof size);
	fwrite(&crc, sizeof crc, 1, e->file);
	fwrite(event.p, 1, event.n, e->file);
	crc = masked(event.p, event.n);
	fwrite(&crc, sizeof crc, 1, e->file);
	message_close(&event);
	if (fflush(e->file) != 0)
		om_die("tensorboard", "%s: %s; free some space", e->path, strerror(errno));
}

void
om_events_open(struct om_events *e, const char *dir, uint64_t step)
{
	static const char version[] = "brain.Event:2";
	static const char started[] = { SESSION_STATUS << 3 | VARINT, SESSION_START };
	char host[64] = "";

	om_ckpt_make_parents(dir);
	if (mkdir(dir, 0777) != 0 && errno != EEXIST)
		om_die("tensorboard", "%s: %s; correct log.tensorboard", dir, strerror(errno));
	gethostname(host, sizeof host - 1);
	e->path = om_text("%s/events.out.tfevents.%010lld.%s.%lld", dir, (long long)time(NULL),
	    host, (long long)getpid());
	if (!(e->file = fopen(e->path, "ae")))
		om_die("tensorboard", "%s: %s; correct log.tensorboard", e->path, strerror(errno));
	setvbuf(e->file, NULL, _IOFBF, 1 << 16);
	record(e, 0, EVENT_VERSION, version, sizeof version - 1);
	if (step != OM_NO_STEP) /* readers drop what older files have of later ones */
		record(e, step + 1, EVENT_SESSION, started, sizeof started);
}

void
om_events_number(struct om_events *e, const char *tag, double x)
{
	struct om_message value;
	float number = (float)x;

	message_open(&value);
	field_bytes(value.f, VALUE_TAG, tag, strlen(tag));
	field(value.f, VALUE_NUMBER, FIXED32);
	fwrite(&number, sizeof number, 1, value.f);
	fflush(value.f);
	if (!e->summary.f)
		message_open(&e->summary);
	field_bytes(e->summary.f, SUMMARY_VALUE, value.p, value.n);
	message_close(&value);
}

void
om_events_step(struct om_events *e, uint64_t step)
{
	fflush(e->summary.f);
	record(e, step, EVENT_SUMMARY, e->summary.p, e->summary.n);
	message_close(&e->summary);
	e->summary.f = NULL;
}

void
om_events_close(struct om_events *e)
{
	fclose(e->file);
	free(e->path);
}
