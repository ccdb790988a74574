/*
 * Mixes: how much is taken of each source, and the order of all places, against models that count
 * and list what mix.c and data.c compute.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../runtime/om_rt.h"
#include "check.h"

enum { SOURCES = 9, SEED = 7, MIX_ROW = 1 << 24, DOCUMENT_ROW = 1 << 25, LIST = 8192 };

static uint32_t
below(uint32_t n)
{
	static uint64_t state = 1;

	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % n;
}

/* The greatest n for which n * a <= b, by counting. */
static uint64_t
count_up(uint64_t a, uint64_t b)
{
	uint64_t n = 0;

	for (uint64_t sum = a; sum <= b; sum += a)
		n++;
	return n;
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* Weights are w/10 and repeats r/4, so all is in whole numbers. */
struct shares {
	uint32_t n;
	uint64_t size[SOURCES], w[SOURCES], r[SOURCES];
};

static bool
takes(const struct shares *m, uint64_t size, struct om_share *s, uint64_t *most)
{
	for (uint32_t i = 0; i < m->n; i++)
		s[i] = (struct om_share){ .weight = (double)m->w[i] / 10,
			.repeat = (double)m->r[i] / 4,
			.size = m->size[i] };
	om_mix_limits(s, m->n);
	return om_mix_takes(s, m->n, size, most);
}

static void
test_shares(void)
{
	struct shares m;
	struct om_share s[SOURCES];
	int met = 0, refused = 0, scaled = 0;

	for (int round = 0; round < 2000; round++) {
		uint64_t all = 0, sum = 0, size, most, limit[SOURCES];
		bool fit = true, good = true, got;

		m.n = 1 + below(SOURCES);
		for (uint32_t i = 0; i < m.n; i++) {
			m.size[i] = 1 + below(60);
			m.w[i] = i ? below(12) : 1 + below(12);
			m.r[i] = 4 + below(12);
			limit[i] = count_up(4, m.size[i] * m.r[i]);
			all += m.size[i];
			sum += m.w[i];
		}
		/* of a size: each has its share, rounded down, or nothing is done */
		size = 1 + below((uint32_t)(3 * all));
		for (uint32_t i = 0; i < m.n; i++)
			fit = fit && count_up(sum, size * m.w[i]) <= limit[i];
		got = takes(&m, size, s, &most);
		for (uint32_t i = 0; i < m.n; i++)
			good = good && s[i].limit == limit[i] &&
			       s[i].take == count_up(sum, size * m.w[i]);
		CHECK(got == fit && good);
		met += fit;
		refused += !fit;
		CHECK(fit == (size <= most));
		CHECK(takes(&m, most, s, &most) && !takes(&m, most + 1, s, &most));
		/* of none: of all there is, times the greatest f for which f all w / sum <= limit:
		 * that of the source with the least limit / w, if it is less than 1 */
		uint32_t least = 0;
		for (uint32_t i = 1; i < m.n; i++)
			if (limit[i] * m.w[least] < limit[least] * m.w[i])
				least = i;
		good = takes(&m, 0, s, &most);
		fit = all * m.w[least] <= limit[least] * sum;
		for (uint32_t i = 0; i < m.n; i++)
			good = good && s[i].take <= s[i].limit &&
			       s[i].take == (fit ? count_up(sum, all * m.w[i])
						 : count_up(m.w[least], limit[least] * m.w[i]));
		scaled += !fit;
		CHECK(good);
	}
	CHECK(met > 300 && refused > 300 && scaled > 300);
}

/* Decimal weights are what they say, sizes may be large, and weights need not be given. */
static void
test_shares_exact(void)
{
	struct om_share s[3] = { { .weight = 0.7, .repeat = 1, .size = 100 },
		{ .weight = 0.2, .repeat = 1, .size = 100 },
		{ .weight = 0.1, .repeat = 1.1, .size = 10 } };
	uint64_t most;

	om_mix_limits(s, 3);
	for (uint64_t n = 10; n <= 110; n += 10)
		CHECK(om_mix_takes(s, 3, n, &most) && s[0].take == n / 10 * 7 &&
		      s[1].take == n / 5 && s[2].take == n / 10);
	CHECK(s[2].limit == 11 && most == 119);
	CHECK(!om_mix_takes(s, 3, 120, &most));
	for (int i = 0; i < 3; i++)
		s[i].weight = NAN;
	om_mix_limits(s, 3);
	CHECK(om_mix_takes(s, 3, 0, &most) && s[0].take == 100 && s[1].take == 100 &&
	      s[2].take == 10);
	for (int i = 0; i < 3; i++)
		s[i] = (struct om_share){ 1e14, 65536, OM_SHARE_MOST, 0, 0, 0 };
	om_mix_limits(s, 3);
	CHECK(om_mix_takes(s, 3, 0, &most) && s[2].take == OM_SHARE_MOST);
	s[1].weight = 1; /* against 1e14 */
	om_mix_limits(s, 3);
	CHECK(om_mix_takes(s, 3, 0, &most) && s[1].take == 4 && s[0].take == s[2].take);
}

/* ---- order ----------------------------------------------------------------------------------- */

struct mix {
	struct om_source source[SOURCES];
	uint64_t first[SOURCES + 1], seen[SOURCES];
	struct om_data d;
};

static void
random_mix(struct mix *m, int order)
{
	uint32_t n = 1 + below(SOURCES);

	memset(m, 0, sizeof *m);
	for (uint32_t i = 0; i < n; i++) {
		m->source[i].nseq = 1 + below(80);
		m->first[i + 1] = m->first[i] + below(100) + (i == 0);
	}
	m->d = (struct om_data){ .block = 1,
		.source = m->source,
		.nsources = n,
		.first = m->first,
		.seen = m->seen,
		.nseq = m->first[n],
		.seed = SEED,
		.order = order };
}

struct listed {
	uint32_t source;
	uint64_t i; /* the how many-th it is of its source, in this epoch */
};

/* Sources from..to, of two halves as evenly as counting in steps can do it; gives how many. */
static uint64_t
interleave(const struct mix *m, uint32_t from, uint32_t to, struct listed *list)
{
	struct listed *left, *right;
	uint64_t nleft, nright, sum = 0, l = 0, r = 0;

	if (to - from == 1) {
		for (uint64_t i = 0; i < m->first[to] - m->first[from]; i++)
			list[i] = (struct listed){ from, i };
		return m->first[to] - m->first[from];
	}
	left = calloc(LIST, sizeof *left);
	right = calloc(LIST, sizeof *right);
	nleft = interleave(m, from, (from + to) / 2, left);
	nright = interleave(m, (from + to) / 2, to, right);
	for (uint64_t i = 0; i < nleft + nright; i++) {
		sum += nleft;
		if (sum >= nleft + nright) {
			sum -= nleft + nright;
			list[i] = left[l++];
		} else {
			list[i] = right[r++];
		}
	}
	CHECK(l == nleft && r == nright);
	free(left);
	free(right);
	return nleft + nright;
}

static void
test_order(int order)
{
	static struct listed list[LIST];
	static struct mix m;
	uint64_t apart = 0, places = 0;

	for (int round = 0; round < 60; round++) {
		uint32_t times[SOURCES][80] = { { 0 } };
		uint64_t seen[SOURCES] = { 0 };
		bool good = true, even = true;

		random_mix(&m, order);
		interleave(&m, 0, m.d.nsources, list);
		for (uint32_t k = 0; order != OM_INTERLEAVE && k < m.d.nsources; k++)
			for (uint64_t i = m.first[k]; i < m.first[k + 1]; i++)
				list[i] = (struct listed){ k, i - m.first[k] };
		for (uint64_t g = 0; g < 3 * m.d.nseq; g++) {
			uint64_t epoch = g / m.d.nseq, i = g % m.d.nseq;
			struct om_place p = om_data_place(&m.d, g);
			struct listed want = list[i];
			const struct om_source *s;

			if (order == OM_SHUFFLE && m.d.nsources > 1)
				want = list[om_permute(SEED, MIX_ROW, epoch, m.d.nseq, i)];
			s = &m.source[want.source];
			want.i += epoch * (m.first[want.source + 1] - m.first[want.source]);
			epoch = want.i / s->nseq;
			want.i %= s->nseq;
			if (order != OM_SEQUENTIAL)
				want.i = om_permute(SEED, want.source, epoch, s->nseq, want.i);
			good = good && p.source == want.source && p.sequence == want.i;
			if (!good)
				break;
			places++;
			apart += p.source != list[i].source;
			times[p.source][p.sequence]++;
			seen[p.source]++;
			if (order == OM_INTERLEAVE)
				for (uint32_t k = 0; k < m.d.nsources; k++)
					even =
					    even && fabs((double)seen[k] -
							 (double)(g + 1) *
							     (double)(m.first[k + 1] - m.first[k]) /
							     (double)m.d.nseq) < 3;
		}
		CHECK(good && even);
		/* three epochs are three times what an epoch takes, each sequence as often as the
		 * others or once more */
		for (uint32_t k = 0; k < m.d.nsources; k++) {
			uint64_t n = m.source[k].nseq, all = 3 * (m.first[k + 1] - m.first[k]),
				 more = 0;

			for (uint64_t i = 0; i < n; i++) {
				good = good && times[k][i] >= all / n && times[k][i] <= all / n + 1;
				more += times[k][i] - all / n;
			}
			good = good && seen[k] == all && more == all % n;
		}
		CHECK(good);
		om_data_count(&m.d, 0, 1);
		om_data_count(&m.d, 1, 3 * m.d.nseq - 1);
		CHECK(memcmp(m.seen, seen, sizeof seen) == 0);
	}
	CHECK(order == OM_SHUFFLE ? apart > places / 3 : apart == 0);
}

/* Sizes that only 64 bits hold: places are found, and where they have to be. */
static void
test_large(void)
{
	static struct mix m;

	for (int order = OM_SHUFFLE; order <= OM_INTERLEAVE; order++)
		for (int round = 0; round < 200; round++) {
			uint64_t g;
			struct om_place p;

			random_mix(&m, order);
			for (uint32_t i = 0; i < m.d.nsources; i++) {
				m.source[i].nseq = ((uint64_t)1 << 44) + below(1 << 30);
				m.first[i + 1] = m.first[i] + ((uint64_t)below(1 << 20) << 32) + 1;
			}
			m.d.nseq = m.first[m.d.nsources];
			g = m.d.nseq * below(100) + ((uint64_t)below(1 << 20) << 24) % m.d.nseq;
			p = om_data_place(&m.d, g);
			CHECK(p.source < m.d.nsources && p.sequence < m.source[p.source].nseq);
			om_data_count(&m.d, g, 1000);
			for (uint32_t i = 0; order == OM_INTERLEAVE && i < m.d.nsources; i++)
				CHECK(fabs((double)m.seen[i] -
					   1000 * (double)(m.first[i + 1] - m.first[i]) /
					       (double)m.d.nseq) < 6);
			CHECK(order != OM_CURRICULUM || (g % m.d.nseq >= m.first[p.source] &&
							    g % m.d.nseq < m.first[p.source + 1]));
		}
}

/* A run of one source reads what runs have always read: the numbers are of a trainer of before. */
static void
test_same_as_ever(void)
{
	static const uint64_t was[2][6] = { { 661, 744, 538, 925, 900, 866 },
		{ 584, 659, 215, 291, 223, 290 } };
	struct om_source s = { .nseq = 1000 };
	uint64_t first[2] = { 0, 1000 };
	struct om_data d = {
		.source = &s, .nsources = 1, .first = first, .nseq = 1000, .seed = 42, .block = 1
	};

	for (uint64_t epoch = 0; epoch < 2; epoch++)
		for (uint64_t i = 0; i < 6; i++)
			CHECK(om_data_place(&d, 1000 * epoch + i).sequence == was[epoch][i]);
}

/* What is read is of the place's source, at its sequence. */
static void
test_read(void)
{
	enum { S = 4, FILES = 3, N = 101 };
	char dir[] = "/tmp/om-test-XXXXXX", *path[FILES];
	struct om_set source[2] = { { .name = "a", .section = "data.mix.a", .weight = 1 },
		{ .name = "b", .section = "data.mix.b", .weight = 3 } };
	struct om_set set = { .section = "data", .source = source, .nsources = 2 };
	struct om_model m = { .seq = S, .vocab = 256 };
	struct om_data d;
	int32_t token[S], label[S];

	if (!mkdtemp(dir))
		abort();
	for (int i = 0; i < FILES; i++) { /* 0.. is a's; 100.. and on in another file b's */
		FILE *f = fopen(path[i] = om_text("%s/%d", dir, i), "wb");

		for (int j = 0; j < (i == 1 ? 50 : i == 2 ? 51 : N); j++)
			fputc(i ? 100 + 50 * (i - 1) + j : j, f);
		fclose(f);
	}
	source[0].paths = (struct om_list){ path, 1 };
	source[1].paths = (struct om_list){ path + 1, 2 };
	source[0].repeat = source[1].repeat = 2;
	source[0].eos = source[1].eos = source[0].bos = source[1].bos = OM_NONE;
	for (int order = OM_SHUFFLE; order <= OM_INTERLEAVE; order++) {
		set.order = order;
		set.unit = order % 2 ? OM_OF_SEQUENCES : OM_OF_TOKENS;
		om_data_open(&d, &m, &set, SEED);
		/* of 50 in all, a quarter and three of them; of 200 tokens the same */
		CHECK(d.nseq == 49 && d.first[1] == 12 &&
		      d.source[1].share.take == (order % 2 ? 37 : 150));
		CHECK(strcmp(d.mix, "12 of 25, 37 of 25 sequences") == 0 && d.tokens == 2 * N &&
		      d.files == 3);
		for (uint64_t g = 0; g < 2 * d.nseq; g++) {
			struct om_place p = om_data_place(&d, g);
			int first = 100 * (int)p.source + S * (int)p.sequence;
			bool ok = true;

			om_data_read(&d, g, token, label, NULL);
			for (int i = 0; i < S; i++)
				ok = ok && token[i] == first + i && label[i] == first + i + 1;
			CHECK(ok);
		}
		om_data_close(&d);
	}
	for (int i = 0; i < FILES; i++) {
		unlink(path[i]);
		free(path[i]);
	}
	rmdir(dir);
}

/* With blocks the tokens of an epoch have one order, whatever the sequences' length. */
static void
test_blocks(void)
{
	enum { BLOCK = 24, N = 500, SOURCES_OF = 2, MOST = 4 * SOURCES_OF * N };
	static const uint64_t length[] = { 24, 3, 8 };
	static int32_t order_of[OM_LEN(length)][MOST], token[BLOCK], label[BLOCK];
	char dir[] = "/tmp/om-test-XXXXXX", *path[SOURCES_OF];
	struct om_set source[SOURCES_OF] = { { .name = "a", .section = "data.mix.a", .weight = 1 },
		{ .name = "b", .section = "data.mix.b", .weight = 2 } };
	struct om_set set = { .section = "data",
		.source = source,
		.nsources = SOURCES_OF,
		.block = BLOCK,
		.unit = OM_OF_TOKENS };

	if (!mkdtemp(dir))
		abort();
	for (int k = 0; k < SOURCES_OF; k++) {
		FILE *f = fopen(path[k] = om_text("%s/%d", dir, k), "wb");

		for (int j = 0; j < N - 20 * k; j++)
			fputc((17 * k + 31 * j + j / 7) & 255, f);
		fclose(f);
		source[k].paths = (struct om_list){ &path[k], 1 };
		source[k].repeat = 3;
		source[k].eos = source[k].bos = OM_NONE;
	}
	for (set.order = OM_SHUFFLE; set.order <= OM_INTERLEAVE; set.order++) {
		uint64_t tokens = 0;

		for (size_t l = 0; l < OM_LEN(length); l++) {
			struct om_model m = { .seq = length[l], .vocab = 256 };
			struct om_data d;
			uint64_t n = 0, moved = 0;
			int32_t next = -1;

			om_data_open(&d, &m, &set, SEED);
			for (uint64_t g = 0; g < 2 * d.nseq && n + m.seq <= MOST; g++) {
				om_data_read(&d, g, token, label, NULL);
				moved += token[0] != next;
				next = label[m.seq - 1];
				memcpy(order_of[l] + n, token, m.seq * sizeof *token);
				n += m.seq;
			}
			tokens = l ? tokens : n;
			CHECK(n == tokens && n > N && n % BLOCK == 0);
			CHECK((moved < 10) == (set.order == OM_SEQUENTIAL));
			CHECK(memcmp(order_of[l], order_of[0], n * sizeof *token) == 0);
			om_data_close(&d);
		}
	}
	for (int k = 0; k < SOURCES_OF; k++) {
		unlink(path[k]);
		free(path[k]);
	}
	rmdir(dir);
}

/*
 * The tokens of a source of documents, one behind the other as they are drawn, and which begin one;
 * gives how many.
 */
static uint64_t
draw(const unsigned char *text, const uint64_t *begin, uint64_t documents, uint64_t taken,
    uint32_t source, int order, int32_t *stream, bool *begins)
{
	uint64_t n = 0;

	for (uint64_t k = 0; k < taken; k++) {
		uint64_t i = k % documents;

		if (order != OM_SEQUENTIAL)
			i = om_permute(SEED, DOCUMENT_ROW + source, k / documents, documents, i);
		for (uint64_t j = begin[i]; j < begin[i + 1]; j++) {
			begins[n] = j == begin[i];
			stream[n++] = text[j];
		}
	}
	return n;
}

/* Documents of random lengths, in two files a source: what is read is what naive drawing gives. */
static void
test_documents(int order)
{
	enum { S = 6, N = 600, EOS = 200, SOURCES_OF = 2, DOCUMENTS = N };
	static int32_t stream[SOURCES_OF][4 * N];
	static bool begins[SOURCES_OF][4 * N];
	static unsigned char text[SOURCES_OF][N];
	static uint64_t begin[DOCUMENTS + 1];
	char dir[] = "/tmp/om-test-XXXXXX", *path[2 * SOURCES_OF];
	struct om_set source[SOURCES_OF] = { { .name = "a",
						 .section = "data.mix.a",
						 .eos = EOS,
						 .bos = OM_NONE,
						 .weight = 2,
						 .repeat = 3 },
		{ .name = "b",
		    .section = "data.mix.b",
		    .eos = EOS,
		    .bos = OM_NONE,
		    .weight = 1,
		    .repeat = 3 } };
	struct om_set set = { .section = "data",
		.order = order,
		.unit = OM_OF_DOCUMENTS,
		.source = source,
		.nsources = SOURCES_OF };
	struct om_model m = { .seq = S, .vocab = 256, .document_off = 1 };
	struct om_data d;
	int32_t token[S], label[S], first[S];
	uint64_t documents[SOURCES_OF], length[SOURCES_OF];
	bool ok = true;

	if (!mkdtemp(dir))
		abort();
	for (int i = 0; i < 2 * SOURCES_OF; i++) {
		unsigned char *half = text[i / 2] + (i % 2 ? N / 2 : 0);
		FILE *f = fopen(path[i] = om_text("%s/%d", dir, i), "wb");

		for (int j = 0; j < N / 2; j++)
			half[j] = (unsigned char)(below(i < 2 ? 9 : 20) ? below(EOS) : EOS);
		fwrite(half, 1, N / 2, f);
		fclose(f);
		source[i / 2].paths = (struct om_list){ path + i / 2 * 2, 2 };
	}
	om_data_open(&d, &m, &set, SEED);
	for (uint32_t k = 0; k < SOURCES_OF; k++) {
		documents[k] = 0;
		for (uint64_t j = 0; j < N; j++)
			if (!j || j == N / 2 || text[k][j - 1] == EOS)
				begin[documents[k]++] = j;
		begin[documents[k]] = N;
		ok = ok && d.source[k].documents == documents[k] &&
		     d.source[k].share.size == documents[k];
		length[k] = draw(text[k], begin, documents[k], d.source[k].share.take, k, order,
		    stream[k], begins[k]);
		ok = ok && d.source[k].nseq == (length[k] - 1) / S &&
		     d.first[k + 1] - d.first[k] == d.source[k].nseq;
	}
	CHECK(ok && d.source[0].share.take == 2 * (documents[0] + documents[1]) / 3 &&
	      d.source[1].share.take == (documents[0] + documents[1]) / 3);
	for (uint64_t g = 0; g < 2 * d.nseq; g++) {
		struct om_place p = om_data_place(&d, g);
		const int32_t *want = stream[p.source] + S * p.sequence;

		om_data_read(&d, g, token, label, first);
		ok = ok && memcmp(token, want, sizeof token) == 0 &&
		     memcmp(label, want + 1, sizeof label) == 0 && !first[0];
		for (int i = 1; i < S; i++)
			ok = ok && first[i] == (begins[p.source][S * p.sequence + (uint64_t)i]
						       ? i
						       : first[i - 1]);
	}
	CHECK(ok);
	om_data_close(&d);
	for (int i = 0; i < 2 * SOURCES_OF; i++) {
		unlink(path[i]);
		free(path[i]);
	}
	rmdir(dir);
}

int
main(void)
{
	for (int round = 0; round < 8; round++)
		test_documents(round % 4);
	test_read();
	test_blocks();
	test_shares();
	test_shares_exact();
	for (int order = OM_SHUFFLE; order <= OM_INTERLEAVE; order++)
		test_order(order);
	test_large();
	test_same_as_ever();
	return check_end();
}
