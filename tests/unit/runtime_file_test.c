/* Tests of what reads files from outside: regular files, JSON, safetensors, tokens. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../runtime/json.h"
#include "../../runtime/om_rt.h"
#include "../../runtime/rng.h"
#include "check.h"

/* Writes head (with its length before it) and data bytes; gives what om_st_open says of it. */
static const char *
st(const char *head, size_t data)
{
	char path[] = "/tmp/om-test-XXXXXX";
	int fd = mkstemp(path);
	uint64_t n = strlen(head);
	char zero[96] = { 0 };
	static struct om_st s;
	const char *why;

	if (write(fd, &n, 8) != 8 || write(fd, head, n) != (ssize_t)n ||
	    write(fd, zero, data) != (ssize_t)data)
		abort();
	close(fd);
	why = om_st_open(&s, path);
	om_st_close(&s);
	unlink(path);
	return why;
}

static void
test_safetensors(void)
{
	char path[] = "/tmp/om-test-XXXXXX";
	int fd = mkstemp(path);
	struct om_st_tensor t[] = {
		{ (char *)(uintptr_t) "z \"quoted\\ %", "F32", { 2, 3 }, 2, 0, 24 },
		{ (char *)(uintptr_t) "a", "F64", { 1 }, 1, 24, 32 },
		{ (char *)(uintptr_t) "scalar", "F32", { 0 }, 0, 32, 36 },
	};
	char zero[36] = { 0 };
	struct om_st s;
	const struct om_st_tensor *found;

	CHECK(om_st_write_header(fd, t, 3) && om_write_all(fd, zero, 36));
	close(fd);
	CHECK(!om_st_open(&s, path));
	CHECK(s.n == 3 && s.data % 8 == 0);
	found = om_st_find(&s, t[0].name);
	CHECK(found && found->ndims == 2 && found->dim[1] == 3 && found->begin == 0 &&
	      found->end == 24);
	found = om_st_find(&s, "scalar");
	CHECK(found && found->ndims == 0 && found->begin == 32);
	CHECK(!om_st_find(&s, "b"));
	om_st_close(&s);
	unlink(path);
	CHECK(strstr(om_st_open(&s, path), "No such file"));

#define A "{\"a\":{\"dtype\":\"F32\",\"shape\":"
	CHECK(!st(A "[2],\"data_offsets\":[0,8]}}", 8));
	CHECK(!st("{}", 0));
	CHECK(strcmp(st(A "[2],\"data_offsets\":[0,8]}}", 7), "it is truncated") == 0);
	CHECK(strcmp(st(A "[2],\"data_offsets\":[0,8]}}", 9), "it goes on after its last tensor") ==
	      0);
	CHECK(strstr(st(A "[2],\"data_offsets\":[4,12]}}", 12),
	    "overlap or leave holes: a begins at byte 4, the one before it ends at 0"));
	CHECK(strstr(st(A "[3],\"data_offsets\":[0,8]}}", 8),
	    "its header's entry of a is wrong: its data_offsets are not as far apart"));
	CHECK(strstr(st(A "[-2],\"data_offsets\":[0,8]}}", 8), "a is wrong: its shape has"));
	CHECK(strstr(st(A "[2.0],\"data_offsets\":[0,8]}}", 8), "a is wrong: its shape has"));
	CHECK(strstr(st(A "[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0), "beyond all"));
	/* the product is 2^64 bits */
	CHECK(strstr(st(A "[576460752303423488],\"data_offsets\":[0,0]}}", 0), "beyond all"));
	CHECK(strstr(st(A "[2],\"data_offsets\":[8,0]}}", 8), "a first and a last byte"));
	CHECK(strstr(st(A "[2],\"data_offsets\":[0,8,9]}}", 8), "a first and a last byte"));
	CHECK(strstr(st("{\"a\":3}", 8), "a is wrong: its dtype is not one"));
	CHECK(strstr(st("{\"a\":{\"dtype\":\"I4\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8),
	    "its dtype is not one of the format's"));
	CHECK(strstr(st(A "[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8), "at most 8 sizes"));
	CHECK(strstr(st("[1]", 0), "damaged: line 1, column 1: an object"));
	CHECK(strstr(st("{\"a\":", 0), "its header is damaged: line 1, column 5: "));
	CHECK(strstr(st("", 0), "damaged: line 1, column 1: it is empty"));
	CHECK(strstr(st("{\"a\":{},\"a\":{}}", 0), "column 11: the name \"a\" is there twice"));
#undef A
	/* without elements, wherever another one ends: at the start, between, and at the end */
#define T(name, dtype, shape, begin, end)                                                    \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin \
	"," end "]}"
	CHECK(!st("{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[0]", "0", "0") "," T(
		      "c", "F32", "[0,3]", "8", "8") "," T("d", "U8", "[1]", "8", "9") "," T("e",
		      "U8", "[0]", "9", "9") "}  ",
	    9));
	CHECK(
	    strstr(st("{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[0]", "4", "4") "}", 8),
		"b begins at byte 4, the one before it ends at 8"));
	/* 12 values, as many bytes as each dtype makes of them */
	static const char *const dtype[][2] = { { "BOOL", "12" }, { "U8", "12" }, { "I8", "12" },
		{ "F8_E4M3", "12" }, { "F8_E5M2", "12" }, { "F8_E8M0", "12" }, { "F4", "6" },
		{ "F6_E2M3", "9" }, { "F6_E3M2", "9" }, { "I16", "24" }, { "U16", "24" },
		{ "F16", "24" }, { "BF16", "24" }, { "I32", "48" }, { "U32", "48" },
		{ "F32", "48" }, { "I64", "96" }, { "U64", "96" }, { "F64", "96" },
		{ "C64", "96" } };
	for (size_t i = 0; i < OM_LEN(dtype); i++) {
		char head[128];

		snprintf(head, sizeof head, "{" T("a", "%s", "[3,4]", "0", "%s") "}", dtype[i][0],
		    dtype[i][1]);
		CHECK(!st(head, (size_t)atoi(dtype[i][1])));
	}
	CHECK(strstr(st("{" T("a", "F4", "[3]", "0", "1") "}", 1), "not as far apart"));
#undef T
}

/* As many tensors as a large shard has: their time once grew with the square of their number. */
static void
test_many(void)
{
	enum { MANY = 20000 };
	char *text;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	for (int i = 0; i < MANY; i++)
		fprintf(f,
		    "%c\"model.layers.7.mlp.experts.%d.w\":{\"dtype\":\"U8\",\"shape\":[2,0],"
		    "\"data_offsets\":[%d,%d]}",
		    i ? ',' : '{', i, 0, 0);
	fputc('}', f);
	fclose(f);
	CHECK(!st(text, 0));
	free(text);
}

/* What om_json_parse has against a text; "" where it reads it. */
static const char *
json(const char *s, size_t n)
{
	static char why[OM_JSON_WHY];
	json_t *x = om_json_parse(s, n, why);

	if (x)
		why[0] = 0;
	json_decref(x);
	return why;
}

static void
test_json(void)
{
	static const struct {
		const char *text, *why; /* NULL: it is read */
	} known[] = {
		{ "{}", NULL },
		{ " \r\n\t{ \"a\"\n:\t[1, 2.5e-3, true, null, \"x\"] }\n", NULL },
		{ "{\"\\ud83d\\ude80\":\"\\u0041\x7f\"}", NULL },
		{ "", "line 1, column 1: it is empty" },
		{ "\n\n", "line 3, column 1: it is empty" },
		{ "[]", "line 1, column 1: an object, {...}, is expected" },
		{ "null", "line 1, column 1: an object" },
		{ "\xEF\xBB\xBF{}", "line 1, column 1: an object" },
		{ "{\"a\":1,}", "line 1, column 8: string or '}' expected near '}'" },
		{ "{\"a\":[1,]}", "column 9: unexpected token near ']'" },
		{ "{\n// x\n}", "line 2, column 1: " },
		{ "{\"a\":*b}", "column 6: invalid token" },
		{ "{'a':1}", "column 2: string or '}' expected near '''" },
		{ "{a: 1}", "column 2: " },
		{ "{}{}", "column 3: end of file expected near '{'" },
		{ "{}\n---\n{}", "line 2, column 1: " },
		{ "{\"a\":01}", "column 6: invalid token near '0'" },
		{ "{\"a\":0x10}", "column 7: " },
		{ "{\"a\":1e999}", "real number overflow near '1e999'" },
		{ "{\"a\":99999999999999999999}", "too big integer" },
		{ "{\"a\":NaN}", "invalid token" },
		{ "{\"a\":\"\\u0000\"}", "\\u0000 is not allowed without" },
		{ "{\"a\\u0000b\":1}", "NUL byte in object key not supported" },
		{ "{\"a\":\"\\ud83d\"}", "invalid Unicode '\\uD83D'" },
		{ "{\"a\":\"\xff\"}", "unable to decode byte 0xff" },
		{ "{\"a\":\"x\ny\"}", "unexpected newline" },
		{ "{\"a\":{\"b\\\"c\":1,\n\"b\\\"c\":2}}",
		    "line 2, column 6: the name \"b\\\"c\" is there twice" },
		{ "{\"a\"", "column 4: " },
	};
	char *s = om_alloc(1, 3000010), *text;
	size_t n = 0;
	FILE *f;

	for (size_t i = 0; i < OM_LEN(known); i++) {
		const char *why = json(known[i].text, strlen(known[i].text));

		if (known[i].why ? !strstr(why, known[i].why) : *why)
			printf("%s: %s\n", known[i].text, why);
		CHECK(known[i].why ? strstr(why, known[i].why) != NULL : !*why);
	}
	CHECK(*json("{\"a\":\"x\0y\"}", 11) && *json("{}\0", 3));
	/* nesting: 100 levels are read, 101 are not, nor a million without end */
	for (int deep = 99; deep <= 1000000; deep = deep == 99 ? 100 : deep * 10) {
		memcpy(s, "{\"a\":", 5);
		memset(s + 5, '[', (size_t)deep);
		memset(s + 5 + deep, ']', (size_t)deep);
		s[5 + 2 * deep] = '}';
		text = (char *)(uintptr_t)json(s, 6 + 2 * (size_t)deep);
		CHECK(
		    deep == 99 ? !*text : strstr(text, "column 105: more than 100 levels") != NULL);
	}
	CHECK(!*json("{\"[[\\\"[\":\"{{\"}", 14));
	/* brackets in a text are none; a name of over 1,024 bytes */
	memset(s, '[', 5000);
	memcpy(s, "{\"", 2);
	memcpy(s + 5000, "\":1}", 4);
	CHECK(!*json(s, 5004));
	/* a million empty objects would take 90 times their text */
	memcpy(s, "{\"a\":[{}", 8);
	for (n = 8; n < 3000000; n += 3)
		memcpy(s + n, ",{}", 3);
	memcpy(s + n, "]}", 2);
	CHECK(strstr(json(s, n + 2), "takes more memory than 20 times its "));
	CHECK(!*json("{}", 2));
	free(s);
	/* a text that is not UTF-8 is still written as JSON */
	f = open_memstream(&text, &n);
	om_json_string(f, "a\"\\\n\x01\xc3\xa9\xf0\x9f\x9a\x80");
	fclose(f);
	CHECK(strcmp(text, "\"a\\\"\\\\\\n\\u0001\xc3\xa9\xf0\x9f\x9a\x80\"") == 0);
	free(text);
	f = open_memstream(&text, &n);
	om_json_string(f, "a\xff\xc3\xa9\xf0\x9f");
	fclose(f);
	CHECK(strcmp(text, "\"a\\ufffd\xc3\xa9\\ufffd\\ufffd\"") == 0);
	free(text);
}

/* What is no regular file is refused at once, and a limit is one. */
static void
test_file(void)
{
	char dir[] = "/tmp/om-test-XXXXXX", *path, *text;
	size_t n;
	FILE *f;

	CHECK(mkdtemp(dir));
	path = om_text("%s/x", dir);
	CHECK(!om_file_read(path, 10, &n) && errno == ENOENT &&
	      strcmp(om_file_why(), "No such file or directory") == 0);
	CHECK(mkfifo(path, 0600) == 0);
	CHECK(!om_file_read(path, 10, &n) && errno == EINVAL && strstr(om_file_why(), "a pipe"));
	unlink(path);
	CHECK(!om_file_read("/dev/zero", 10, &n) && strstr(om_file_why(), "is a device"));
	CHECK(!om_file_read(dir, 10, &n) && errno == EISDIR);
	f = fopen(path, "w");
	fputs("0123456789", f);
	fclose(f);
	CHECK(
	    !om_file_read(path, 9, &n) && errno == EFBIG && strstr(om_file_why(), "than 9 bytes"));
	text = om_file_read(path, 10, &n);
	CHECK(text && n == 10 && strcmp(text, "0123456789") == 0);
	free(text);
	text = om_file_read("/proc/self/status", 1 << 20, &n); /* its size is 0 */
	CHECK(text && n > 100);
	free(text);
	unlink(path);
	rmdir(dir);
	free(path);
}

static const char *
npy(const char *dict, int version, struct om_npy *h)
{
	unsigned char p[2048] = "\x93NUMPY";
	size_t n = strlen(dict), skip = version == 1 ? 10 : 12;

	p[6] = (unsigned char)version;
	p[8] = (unsigned char)n;
	p[9] = (unsigned char)(n >> 8);
	memcpy(p + skip, dict, n);
	return om_npy_parse(p, skip + n, h);
}

static void
test_npy(void)
{
	struct om_npy h;
	const char *why;

	CHECK(!npy("{'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }     \n", 1, &h));
	CHECK(h.width == 2 && h.tokens == 1000 && h.head == 10 + 66);
	CHECK(!npy("{'descr': '<i8', 'fortran_order': False, 'shape': (10,), }\n", 1, &h));
	CHECK(h.width == 8 && h.sign && h.tokens == 10);
	CHECK(!npy("{'descr': '|u1', 'fortran_order': False, 'shape': (10,), }\n", 1, &h));
	CHECK(h.width == 1 && !h.sign);
	CHECK(!npy("{'shape': (7,), 'descr':'<u4','fortran_order' : False}\n", 2, &h));
	CHECK(h.width == 4 && h.tokens == 7 && h.head == 12 + 55);
	why = npy("{'descr': '<u16', 'fortran_order': False, 'shape': (10,), }\n", 1, &h);
	CHECK(why && strncmp(why, "holds dtype '<u16'; read are", 28) == 0);
	why = npy("{'descr': '<f8', 'fortran_order': False, 'shape': (10,), }\n", 1, &h);
	CHECK(why && strncmp(why, "holds dtype '<f8'; tokens are whole", 35) == 0 && !h.whole);
	why = npy("{'descr': '>u2', 'fortran_order': False, 'shape': (10,), }\n", 1, &h);
	CHECK(why && strncmp(why, "holds dtype '>u2'; read", 23) == 0);
	why = npy("{'descr': '<u2', 'fortran_order': True, 'shape': (10,), }\n", 1, &h);
	CHECK(why && strncmp(why, "is in Fortran order", 19) == 0 && h.whole);
	why = npy("{'descr': '<u2', 'fortran_order': False, 'shape': (10, 20), }\n", 1, &h);
	CHECK(why && strncmp(why, "has shape (10, 20), only one dimension", 38) == 0);
	why = npy("{'descr': '<u2', 'fortran_order': False, 'shape': (), }\n", 1, &h);
	CHECK(why && strncmp(why, "has shape (), only", 18) == 0);
	CHECK(npy("{'descr': '<u2', 'fortran_order': False, 'shape': (-3,), }\n", 1, &h));
	why = npy("{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999,), }\n",
	    1, &h);
	CHECK(why && strcmp(why, "has a damaged .npy header") == 0);
	why = npy("{'descr': '<u2'", 1, &h);
	CHECK(why && strcmp(why, "has a damaged .npy header") == 0);
	why = npy("", 3, &h);
	CHECK(why && strncmp(why, "is .npy version 3", 17) == 0);
	CHECK(om_npy_parse((const unsigned char *)"\x93NUMPY\1\0\x76\0{}", 12, &h));
	CHECK(om_npy_parse((const unsigned char *)"\x93NUMPY\2\0\x76\0", 10, &h));
	CHECK(om_npy_parse((const unsigned char *)"0123456789", 10, &h));
	CHECK(om_npy_parse((const unsigned char *)"", 0, &h));
}

/* Whether a file of 600 bytes that has these at `at` is known to hold no tokens, as `what` says. */
static bool
known(size_t at, const char *bytes, size_t n, const char *what)
{
	unsigned char p[600];
	const char *is;

	for (size_t i = 0; i < sizeof p; i++)
		p[i] = (unsigned char)(i * i + 3 * i + 129);
	CHECK(!om_filetype_known(p, sizeof p, sizeof p));
	memcpy(p + at, bytes, n);
	is = om_filetype_known(p, sizeof p, sizeof p);
	return is && strstr(is, what);
}

static void
test_format(void)
{
	unsigned char p[512];

	CHECK(known(257, "ustar", 5, "tar archive"));
	CHECK(known(0, "BZh91AY&SY", 10, "bzip2"));
	CHECK(known(0, "\x04\x22\x4d\x18", 4, "lz4"));
	CHECK(known(0,
	    "\xfd"
	    "7zXZ\0",
	    6, "xz"));
	CHECK(known(0, "7z\xbc\xaf\x27\x1c", 6, "7z"));
	CHECK(known(0, "ARROW1\0\0", 8, "Arrow"));
	CHECK(known(0, "\x89HDF\r\n\x1a\n", 8, "HDF5"));
	CHECK(known(0, "TNTIDX\0\0", 8, "fairseq"));
	CHECK(known(0, "LITPKDS", 7, "lit-gpt"));
	CHECK(known(0, "\x8a\xd8\x34\x01\1\0\0\0", 8, "questions"));
	CHECK(known(0, "MMIDIDX\0\0", 9, "name the .bin"));
	CHECK(!om_filetype_known((const unsigned char *)"PK", 2, 2));
	CHECK(!om_filetype_known((const unsigned char *)"", 0, 0));

	for (size_t i = 0; i < sizeof p; i++)
		p[i] = (unsigned char)(i % 4 < 2 ? i + 1 : 0); /* uint32 below 65,536 */
	CHECK(om_is_wider(p, sizeof p, 2) && !om_is_wider(p, sizeof p, 4));
	CHECK(!om_is_wider(p, 64, 2)); /* too few to tell */
	CHECK(om_tokens_fit(p, sizeof p, 4, 65536) && !om_tokens_fit(p, sizeof p, 4, 60000));
	CHECK(!om_tokens_fit(p, sizeof p, 2, 65536));
	memset(p, 0, sizeof p);
	CHECK(!om_is_wider(p, sizeof p, 2)); /* zeros are no halves */
	memset(p, 'a', sizeof p);
	CHECK(om_is_text(p, sizeof p) && !om_is_text(p, 31));
	p[40] = 0;
	CHECK(!om_is_text(p, sizeof p));
	CHECK(om_distance("setps", "steps") == 1 && om_distance("ab", "ba") == 1);
	CHECK(om_distance("abc", "ca") == 3 && om_distance("", "abc") == 3);
}

/* What stands before 17 tokens of a format: a header; of a Megatron data set, in its index. */
static void
write_head(FILE *f, int format, int width)
{
	const int32_t llmc[256] = { 20240801, 7, 17 };
	const int32_t sizes[] = { 4, 0, 13 };
	const int64_t at[] = { 0, 4 * width, 4 * width }, ends[] = { 0, 2, 3 };

	if (format == OM_NPY)
		fprintf(f, "\x93NUMPY%c%c%c%c%-63s\n", 1, 0, 64, 0,
		    "{'descr': '<i8', 'fortran_order': False, 'shape': (17,), }");
	if (format == OM_LLMC)
		fwrite(llmc, 1, sizeof llmc, f);
	if (format != OM_MEGATRON)
		return;
	fwrite("MMIDIDX\0\0\1\0\0\0\0\0\0\0\4\3\0\0\0\0\0\0\0\3\0\0\0\0\0\0", 1, 34, f);
	fwrite(sizes, 1, sizeof sizes, f);
	fwrite(at, 1, sizeof at, f);
	fwrite(ends, 1, sizeof ends, f);
}

/*
 * Every sequence once an epoch, labels one ahead, across files of all formats with tokens.
 * Documents begin with each file, in the last one by its index, and behind EOS, where it is not to
 * be followed by another token. Masks leave labels out.
 */
static void
test_data(void)
{
	static const struct {
		const char *name;
		int format, width;
	} kind[] = { { "a.u16", OM_U16, 2 }, { "b.u32", OM_U32, 4 }, { "c.bin", OM_U16, 2 },
		{ "d.u64", OM_U64, 8 }, { "e.u8", OM_U8, 1 }, { "f.npy", OM_NPY, 8 },
		{ "g.bin", OM_LLMC, 4 }, { "h.bin", OM_MEGATRON, 4 } };
	enum { FILES = OM_LEN(kind), N = 17 * FILES, S = 5, NSEQ = (N - 1) / S, EOS = 20 };
	char dir[] = "/tmp/om-test-XXXXXX", *path[FILES], *mask[FILES], *index;
	struct om_model m = { .seq = S, .vocab = N, .document_off = 1 };
	struct om_set set = { .section = "data", .paths = { path, FILES }, .eos = EOS };
	struct om_data d;
	int32_t token[S], label[S], begin[S];
	int first = 0;

	if (!mkdtemp(dir))
		abort();
	index = om_text("%s/h.idx", dir);
	for (int i = 0; i < FILES; i++) {
		FILE *f = fopen(path[i] = om_text("%s/%s", dir, kind[i].name), "wb");
		FILE *x = fopen(index, "wb");
		FILE *m = fopen(mask[i] = om_text("%s/%d.mask", dir, i), "wb");

		if (i % 2)
			fprintf(m, "\x93NUMPY%c%c%c%c%-63s\n", 1, 0, 64, 0,
			    i % 4 == 1
				? "{'descr': '|b1', 'fortran_order': False, 'shape': (17,), }"
				: "{'descr': '|u1', 'fortran_order': False, 'shape': (17,), }");
		write_head(kind[i].format == OM_MEGATRON ? x : f, kind[i].format, kind[i].width);
		for (int end = first + 17; first < end; first++) {
			fwrite(&(int64_t){ first }, (size_t)kind[i].width, 1, f);
			fputc(first % 3 > 0, m);
		}
		fclose(m);
		fclose(f);
		fclose(x);
	}
	for (int order = OM_SHUFFLE; order <= OM_SEQUENTIAL; order++) {
		int moved = 0;

		set.order = order;
		set.cut = order == OM_SHUFFLE;
		set.bos = order == OM_SHUFFLE ? OM_NONE : EOS + 2;
		set.masks = order ? (struct om_list){ mask, FILES } : (struct om_list){ 0 };
		om_data_open(&d, &m, &set, 0);
		CHECK(d.tokens == N && d.nseq == NSEQ && d.files == FILES);
		for (int i = 0; i < FILES; i++)
			CHECK(d.source[0].file[i].format == kind[i].format &&
			      d.source[0].file[i].width == (uint32_t)kind[i].width);
		for (int epoch = 0; epoch < 2; epoch++) {
			bool seen[NSEQ] = { false }, ok = true;

			for (int g = 0; g < NSEQ; g++) {
				om_data_read(&d, (uint64_t)(epoch * NSEQ + g), token, label, begin);
				for (int i = 0, want = 0; i < S; i++) {
					bool ends = (token[i] + 1) % 17 == 0 ||
						    token[i] + 1 == 17 * (FILES - 1) + 4 ||
						    (token[i] == EOS && set.bos == OM_NONE),
					     masked = set.masks.n && (token[i] + 1) % 3 == 0;

					ok = ok && token[i] == token[0] + i && begin[i] == want &&
					     label[i] ==
						 ((ends && set.cut) || masked ? -1 : token[i] + 1);
					want = ends ? i + 1 : want;
				}
				ok = ok && token[0] % S == 0 && token[0] / S < NSEQ &&
				     !seen[token[0] / S];
				seen[token[0] / S] = true;
				moved += token[0] / S != g;
			}
			CHECK(ok);
		}
		CHECK(order == OM_SHUFFLE ? moved > NSEQ : moved == 0);
		om_data_close(&d);
	}
	unlink(index);
	free(index);
	for (int i = 0; i < FILES; i++) {
		unlink(path[i]);
		free(path[i]);
		unlink(mask[i]);
		free(mask[i]);
	}
	rmdir(dir);
}

/* By the words of it: some p tokens 32 times, all of them compared. */
static bool
repeats_naively(const int32_t *id, int n)
{
	for (int p = 1; p <= 13; p++)
		for (int at = 0; at + 32 * p <= n; at++) {
			int times = 1;

			while (times < 32 &&
			       memcmp(id + at, id + at + times * p, (size_t)p * sizeof *id) == 0)
				times++;
			if (times == 32)
				return true;
		}
	return false;
}

static void
test_repeats(void)
{
	enum { N = 600 };
	int32_t id[N];
	uint64_t x = 1;
	int found = 0;
	bool ok = true;

	for (int k = 0; k < 6000; k++) {
		/* few kinds of tokens, and a stretch that repeats itself about 32 times */
		uint64_t draw[5];
		int n, p, at, end;

		for (size_t i = 0; i < OM_LEN(draw); i++)
			draw[i] = (x = x * 6364136223846793005 + 1442695040888963407) >> 33;
		n = 1 + (int)(draw[0] % N);
		p = 1 + (int)(draw[1] % 14);
		at = (int)(draw[2] % (uint64_t)n);
		end = at + 32 * p - 2 + (int)(draw[3] % 4);
		for (int i = 0; i < n; i++) {
			id[i] =
			    (int32_t)((x = x * 6364136223846793005 + 1442695040888963407) >> 33) %
			    (2 + (int)(draw[4] % 3));
			if (i >= at + p && i < end)
				id[i] = id[i - p];
		}
		ok = ok && om_repeats(id, (uint64_t)n) == repeats_naively(id, n);
		found += om_repeats(id, (uint64_t)n);
	}
	CHECK(ok);
	CHECK(found > 500 && found < 3000);
}

/*
 * Each document, the longest first, into the sequence with the least room for it, by trying all of
 * them; of those with the same room, the one that has had it longest.
 */
static void
check_packing(uint64_t most, bool fragment, int n, const uint64_t *tokens)
{
	struct om_pack p = { .most = most, .fragment = fragment };
	uint64_t *room, *since, time = 0, sequences = 0, packed = 0;
	uint32_t *count;
	bool *done, ok = true;

	for (int i = 0; i < n; i++)
		om_pack_add(&p, tokens[i]);
	om_pack_fit(&p);
	room = om_alloc(p.n + 1, sizeof *room);
	since = om_alloc(p.n + 1, sizeof *since);
	count = om_alloc(p.n + 1, sizeof *count);
	done = om_alloc(p.n + 1, 1);
	for (uint64_t k = 0; k < p.n; k++) {
		uint64_t next = p.n, in = sequences;

		for (uint64_t i = 0; i < p.n; i++)
			if (!done[i] &&
			    (next == p.n || om_pack_length(&p, i) > om_pack_length(&p, next)))
				next = i;
		for (uint64_t i = 0; i < sequences; i++)
			if (room[i] >= om_pack_length(&p, next) &&
			    (in == sequences || room[i] < room[in] ||
				(room[i] == room[in] && since[i] < since[in])))
				in = i;
		if (in == sequences)
			room[sequences++] = most;
		done[next] = true;
		room[in] -= om_pack_length(&p, next);
		since[in] = ++time;
		packed += om_pack_length(&p, next);
		ok = ok && p.first[in] + count[in] < p.first[in + 1] &&
		     p.piece[p.first[in] + count[in]] == next;
		count[in]++;
	}
	CHECK(ok && p.sequences == sequences && p.tokens == packed && p.first[sequences] == p.n);
	free(room);
	free(since);
	free(count);
	free(done);
	free(p.start);
	free(p.first);
	free(p.piece);
}

static void
test_packing(void)
{
	uint64_t tokens[300], x = 3;

	for (int k = 0; k < 60; k++) {
		int n = 1 + k * 5;

		for (int i = 0; i < n; i++)
			tokens[i] = ((x = x * 6364136223846793005 + 1442695040888963407) >> 33) %
				    (k % 3 ? 20 : 90);
		check_packing((uint64_t)(1 + k), k % 2, n, tokens);
	}
}

/* Each document, or what is left of it, is in one sequence, and followed by others or by eos. */
static void
test_packed(void)
{
	enum { S = 24, FILES = 3, DOCUMENTS = 50, EOS = 0 };
	char dir[] = "/tmp/om-test-XXXXXX", *path[FILES];
	struct om_model m = { .seq = S, .vocab = 1 << 16, .document_off = 1 };
	struct om_set set = { .section = "data",
		.paths = { path, FILES },
		.format = OM_U16,
		.bos = OM_NONE,
		.eos = EOS,
		.order = OM_SEQUENTIAL };
	uint64_t x = 5, length[FILES * DOCUMENTS], begins[FILES * DOCUMENTS];
	uint16_t next = 1;

	if (!mkdtemp(dir))
		abort();
	for (int i = 0; i < FILES; i++) { /* tokens from 1 on; the last file ends without eos */
		FILE *f = fopen(path[i] = om_text("%s/%d.u16", dir, i), "wb");

		for (int k = 0; k < DOCUMENTS; k++) {
			uint64_t *n = &length[i * DOCUMENTS + k];

			*n = 1 + ((x = x * 6364136223846793005 + 1442695040888963407) >> 33) % 36;
			begins[i * DOCUMENTS + k] = next;
			for (uint64_t j = 0; j + 1 < *n; j++, next++)
				fwrite(&next, 2, 1, f);
			if (i + 1 < FILES || k + 1 < DOCUMENTS)
				fwrite(&(uint16_t){ EOS }, 2, 1, f);
			else
				--*n;
		}
		fclose(f);
	}
	for (set.packing = OM_TRUNCATE; set.packing <= OM_FRAGMENT; set.packing++) {
		uint64_t seen[FILES * DOCUMENTS] = { 0 }, ends = 0, fits = 0;
		int32_t token[S], label[S], first[S];
		struct om_data d;
		bool ok = true;

		om_data_open(&d, &m, &set, 0);
		for (uint64_t g = 0; g < d.nseq; g++) {
			om_data_read(&d, g, token, label, first);
			for (int i = 0, begin = 0, pads = 0; i < S; i++) {
				bool last = i + 1 == S || (label[i] == -1 && token[i + 1] == EOS);

				ok = ok && label[i] == (last ? -1 : token[i + 1]);
				if (i && token[i - 1] == EOS && !pads)
					begin = i;
				pads += i && label[i - 1] == -1;
				begin = pads == 1 ? i : begin;
				ok = ok && first[i] == begin;
				ends += token[i] == EOS && (i == 0 || label[i - 1] != -1);
				for (int k = 0; k < FILES * DOCUMENTS; k++) {
					uint64_t n = length[k], at = (uint64_t)token[i] - begins[k];

					if (token[i] == EOS || at >= n ||
					    (k + 1 < FILES * DOCUMENTS &&
						(uint64_t)token[i] >= begins[k + 1]))
						continue;
					/* behind the one before it, unless a piece begins */
					ok = ok && (at % S == 0 || token[i - 1] == token[i] - 1);
					seen[k]++;
				}
			}
		}
		for (int k = 0; k < FILES * DOCUMENTS; k++) {
			uint64_t words = length[k] - (k + 1 < FILES * DOCUMENTS);

			if (set.packing == OM_TRUNCATE && words > S)
				words = S;
			ok = ok && seen[k] == words;
			fits += k + 1 < FILES * DOCUMENTS &&
				(length[k] <= S || set.packing == OM_FRAGMENT);
		}
		CHECK(ok);
		CHECK(ends == fits);
		om_data_close(&d);
	}
	for (int i = 0; i < FILES; i++) {
		unlink(path[i]);
		free(path[i]);
	}
	rmdir(dir);
}

/* Batches are what is read one by one, and an error shows when its batch is asked for. */
static void
test_ahead(void)
{
	enum { S = 4, MICRO = 2, MICROBATCHES = 3, BATCH = S * MICRO * MICROBATCHES, BATCHES = 5 };
	static const uint64_t starts[] = { 0, 3, BATCHES };
	char path[] = "/tmp/om-test-XXXXXX", *paths[] = { path };
	struct om_model m = { .seq = S,
		.micro = MICRO,
		.microbatches = MICROBATCHES,
		.vocab = BATCHES * BATCH + 1,
		.document_off = 1 };
	const struct om_steps steps = { .global = MICRO * MICROBATCHES };
	struct om_set set = { .section = "data",
		.paths = { paths, 1 },
		.format = OM_U16,
		.eos = 17,
		.bos = OM_NONE,
		.cut = true };
	int32_t token[S], label[S], begin[S];
	struct om_data d, one;
	FILE *f = fdopen(mkstemp(path), "wb");

	for (int i = 0; i <= BATCHES * BATCH; i++)
		fwrite(&(uint16_t){ (uint16_t)i }, 2, 1, f);
	fclose(f);
	om_data_open(&d, &m, &set, 7);
	om_data_open(&one, &m, &set, 7);
	for (size_t k = 0; k < OM_LEN(starts); k++) {
		/* the last sequence is left out */
		const uint64_t last = BATCHES * MICRO * MICROBATCHES - 1;
		struct om_ahead *a = om_ahead_start(&d, &m, &steps, 0, starts[k], BATCHES, last);
		bool ok = true;

		for (uint64_t b = starts[k]; b < BATCHES; b++) {
			const struct om_batch *batch = om_ahead_next(a);

			usleep(2000); /* what must not be read into it would be there by now */
			for (uint64_t i = 0; i < MICRO * MICROBATCHES; i++) {
				uint64_t g = b * MICRO * MICROBATCHES + i;

				om_data_read(&one, g, token, label, begin);
				if (g >= last) {
					memset(label, -1, sizeof label);
					memset(begin, 0, sizeof begin);
				}
				ok = ok && om_ahead_sequence(&m, batch->place, i / MICRO) ==
					       g / MICRO * MICRO;
				ok = ok && (g >= last || memcmp(batch->token + i * S, token,
							     sizeof token) == 0);
				ok = ok && memcmp(batch->label + i * S, label, sizeof label) == 0;
				ok = ok && memcmp(batch->first + i * S, begin, sizeof begin) == 0;
			}
		}
		CHECK(ok);
		om_ahead_stop(a);
	}
	om_ahead_stop(om_ahead_start(&d, &m, &steps, 0, 0, BATCHES, UINT64_MAX));
	om_data_close(&d);
	om_data_close(&one);
	unlink(path);
}

/* Where documents begin, by an index of empty and other sequences, some of them in one document. */
static void
test_index(void)
{
	enum { N = 40, MOST = 8 * N };
	char dir[] = "/tmp/om-test-XXXXXX", *bin, *idx;
	struct om_data d = { 0 };
	struct om_source s = {
		.data = &d, .vocab = 65536, .section = "data", .format = OM_MEGATRON
	};
	struct om_file file = { .fd = -1 };
	int32_t sizes[N];
	int64_t at[N], of[N + 1];
	bool begins[MOST + 1] = { false }, got[MOST], ok = true;
	uint64_t documents = 0, tokens = 0;
	uint8_t head[34] = "MMIDIDX\0\0\1\0\0\0\0\0\0\0\10";
	FILE *f;

	if (!mkdtemp(dir))
		abort();
	bin = om_text("%s/a.bin", dir);
	idx = om_text("%s/a.idx", dir);
	for (int i = 0; i < N; i++) {
		uint32_t draw = om_philox((struct om_philox){ { (uint32_t)i } }, 1).v[0];

		sizes[i] = draw % 3 ? (int32_t)(draw / 3 % 8) : 0;
		at[i] = 2 * (int64_t)tokens;
		if (!i || draw / 24 % 3) {
			of[documents++] = i;
			begins[tokens] = true;
		}
		tokens += (uint64_t)sizes[i];
	}
	begins[tokens] = false; /* empty ones at the end hold none */
	of[documents++] = N;
	head[18] = N;
	head[26] = (uint8_t)documents;
	f = fopen(idx, "wb");
	fwrite(head, 1, sizeof head, f);
	fwrite(sizes, 1, sizeof sizes, f);
	fwrite(at, 1, sizeof at, f);
	fwrite(of, 8, documents, f);
	fclose(f);
	f = fopen(file.path = bin, "wb");
	fwrite((uint16_t[MOST]){ 0 }, 2, (size_t)tokens, f);
	fclose(f);
	om_file_inspect(&s, &file);
	CHECK(file.format == OM_MEGATRON && file.tokens == tokens && tokens > N);
	for (uint64_t from = 0; from < tokens; from++)
		for (uint64_t n = 0; from + n <= tokens; n++)
			ok = ok && om_file_begins(&s, &file, from, (size_t)n, got) &&
			     memcmp(got, begins + from, (size_t)n) == 0;
	CHECK(ok);
	close(file.fd);
	unlink(bin);
	unlink(idx);
	rmdir(dir);
	free(bin);
	free(idx);
}

/* First and last tokens of documents, a microbatch of two sequences; NULL: these are all. */
static void
test_put(void)
{
	enum { S = 5 };
	const struct om_model m = { .micro = 2, .seq = S, .document_off = 4 };
	const int32_t first[] = { 0, 0, 2, 3, 3, 0, 1, 1, 1, 1 };
	const int32_t last[] = { 1, 1, 2, 4, 4, 0, 4, 4, 4, 4 };
	int32_t arena[1 + 4 * S] = { 7 };
	/* a sequence has 5 + 4 + 3 + 2 + 1 pairs, or 1 + 2 + 2 + 2 + 2 where two keys are seen */
	static const struct om_pairs pairs[] = { { S, 100 }, { 2, 1 } };
	const struct om_model spares = { .seq = S, .pairs = pairs, .npairs = 2 };

	/* left are 3 + 1 + 3 and 1 + 10 of two times 15; of two keys, 3 + 1 + 3 and 1 + 7 of 9 */
	CHECK(fabs(om_documents_spared(&spares, first, 2) - 100 * (30 - 18) - (18 - 15)) < 1e-9);
	CHECK(fabs(om_documents_spared(&spares, NULL, 2)) < 1e-9);
	om_documents_put(&m, (unsigned char *)arena, first);
	CHECK(memcmp(arena + 1, first, sizeof first) == 0);
	CHECK(memcmp(arena + 1 + 2 * S, last, sizeof last) == 0);
	om_documents_put(&m, (unsigned char *)arena, NULL);
	for (int i = 0; i < 2 * S; i++)
		CHECK(arena[1 + i] == 0 && arena[1 + 2 * S + i] == S - 1);
	CHECK(arena[0] == 7);
}

int
main(void)
{
	test_safetensors();
	test_many();
	test_json();
	test_file();
	test_npy();
	test_format();
	test_data();
	test_repeats();
	test_packing();
	test_packed();
	test_ahead();
	test_index();
	test_put();
	return check_end();
}
