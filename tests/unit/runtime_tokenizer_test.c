/*
 * Tokenizers against what Python's tokenizers made of texts (tests/peer/texts.py says what its
 * files hold), UTF-8 that comes in pieces, and regular expressions.
 *
 * Usage: runtime_tokenizer_test FOLDER
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../runtime/om_rt.h"
#include "../../runtime/tokenizer.h"
#include "check.h"

enum { VOCAB = 1000, LINE = 1 << 16 };

/* Bytes of a text in hexadecimal, and a 0; free() it. */
static char *
unhex(const char *s, size_t *n)
{
	char *out = om_alloc(strlen(s) / 2 + 1, 1);

	for (*n = 0; s[0] && s[1]; s += 2)
		out[(*n)++] = (char)strtol((const char[]){ s[0], s[1], '\0' }, NULL, 16);
	return out;
}

/* What is decoded, token by token, as generate prints it; free() it. */
static char *
decode(struct om_tokenizer *t, const int32_t *id, size_t n, size_t *size)
{
	char *out = NULL;
	FILE *f = open_memstream(&out, size);
	struct om_held held = { .n = 0 };

	for (size_t i = 0; i < n; i++) {
		size_t bytes;
		const char *s = om_tokenizer_bytes(t, id[i], &bytes);

		if (s)
			om_utf8_print(f, &held, s, bytes, false);
	}
	om_utf8_print(f, &held, "", 0, true);
	fclose(f);
	return out;
}

/* One text: its tokens, as a text, and what they decode to. */
static void
test_text(struct om_tokenizer *t, const char *name, size_t line, const char *hex, const char *want)
{
	char why[OM_TOKENIZER_WHY], got[LINE] = "", *text, *back, *plain, *decoded;
	size_t n, count, nback = 0, nplain, ndecoded, used = 0;
	const char *bar = strchr(want, '|');
	struct om_held held = { .n = 0 };
	bool same;
	FILE *f = open_memstream(&plain, &nplain);
	int32_t *id;

	text = unhex(hex, &n);
	om_utf8_print(f, &held, text, n, true);
	fclose(f);
	id = om_tokenizer_encode(t, text, n, &count, why);
	for (size_t i = 0; id && i < count; i++)
		used += (size_t)snprintf(got + used, sizeof got - used, i ? " %d" : "%d", id[i]);
	if (!id || used != (size_t)(bar - want) || strncmp(got, want, used) != 0)
		printf("%s, text %zu (%s): %s, expected %.*s\n", name, line, hex, id ? got : why,
		    (int)(bar - want), want);
	expect(id && used == (size_t)(bar - want) && strncmp(got, want, used) == 0, "encode");
	back = bar[1] == '=' ? NULL : unhex(bar + 1, &nback);
	decoded = decode(t, id, id ? count : 0, &ndecoded);
	same = ndecoded == (back ? nback : nplain) &&
	       memcmp(decoded, back ? back : plain, ndecoded) == 0;
	if (!same)
		printf("%s, text %zu (%s): decodes to %s\n", name, line, hex, decoded);
	expect(same, "decode");
	free(text);
	free(plain);
	free(back);
	free(decoded);
	free(id);
}

static void
test_fixture(const char *folder, const char *name)
{
	static char hex[LINE], want[LINE];
	char why[OM_TOKENIZER_WHY], *path = om_text("%s/%s.json", folder, name);
	struct om_tokenizer *t = om_tokenizer_open(path, VOCAB, why);
	size_t line = 0;
	FILE *texts, *f;

	if (!t)
		printf("%s: %s\n", path, why);
	expect(t, "a tokenizer is read");
	free(path);
	path = om_text("%s/texts.txt", folder);
	texts = fopen(path, "r");
	free(path);
	path = om_text("%s/%s.txt", folder, name);
	f = fopen(path, "r");
	free(path);
	while (t && texts && f && fgets(hex, sizeof hex, texts) && fgets(want, sizeof want, f)) {
		hex[strcspn(hex, "\n")] = want[strcspn(want, "\n")] = '\0';
		test_text(t, name, ++line, hex, want);
	}
	expect(line > 60, "there are texts");
	fclose(texts);
	fclose(f);
	om_tokenizer_close(t);
}

/* ---- regular expressions --------------------------------------------------------------------- */

/* Lengths of the pieces that a pattern cuts a text into, "3,1,4", or why there are none. */
static void
pieces(const char *pattern, const char *text, char out[LINE])
{
	struct om_split *s = om_split_open(pattern, out);
	struct om_found f = { .n = 0 };
	uint32_t *c = om_utf8_all(text, strlen(text), &f.n);
	enum om_find found = OM_NO_MORE;
	size_t used = 0, from = 0;

	while (s && (found = om_split_next(s, c, &f)) == OM_FOUND) {
		if (f.begin > from)
			used += (size_t)sprintf(out + used, ",%zu", f.begin - from);
		if (f.end > f.begin)
			used += (size_t)sprintf(out + used, ",%zu", f.end - f.begin);
		from = f.end;
	}
	if (s && f.n > from)
		used += (size_t)sprintf(out + used, ",%zu", f.n - from);
	if (found == OM_TOO_LONG)
		strcpy(out, ",too long");
	memmove(out, out + (s != NULL), strlen(out) + (s == NULL));
	om_split_close(s);
	free(c);
}

/* What Oniguruma makes of random ones. */
static void
test_splits(const char *folder)
{
	static char line[LINE], got[LINE];
	char *path = om_text("%s/splits.txt", folder);
	FILE *f = fopen(path, "r");
	size_t n = 0, bytes;

	while (f && fgets(line, sizeof line, f)) {
		char *pattern = unhex(strtok(line, " "), &bytes),
		     *text = unhex(strtok(NULL, " "), &bytes);
		const char *want = strtok(NULL, "\n");
		bool refused;

		pieces(pattern, text, got);
		refused = strstr(got, "may be empty") != NULL;
		if (strcmp(got, want) != 0 && !refused)
			printf("/%s/ cuts \"%s\" into %s, expected %s\n", pattern, text, got, want);
		expect(refused || strcmp(got, want) == 0, "a random pattern");
		n += !refused;
		free(pattern);
		free(text);
	}
	expect(n > 100, "there are patterns");
	if (f)
		fclose(f);
	free(path);
}

static void
test_patterns(void)
{
	static const struct {
		const char *pattern, *says;
	} refused[] = {
		{ "a(b", "character 2 of the pattern: ( has no )" },
		{ "a)b", "character 2 of the pattern: ) has no (" },
		{ "[a", "character 1 of the pattern: [ has no ]" },
		{ "[a[b]]", "character 3 of the pattern: a set in a set is not supported" },
		{ "[]a]", "character 2 of the pattern: a set that begins with ]" },
		{ "[b-a]", "character 2 of the pattern: a range from a greater" },
		{ "[a-\\d]", "character 2 of the pattern: a range that ends in a class" },
		{ "\\p{Greek}", "character 1 of the pattern: \\p{Greek} is not supported; L, Lu," },
		{ "\\p{L", "\\p{L... has no end" },
		{ "\\pL", "\\p is not followed by {" },
		{ "\\w", "character 1 of the pattern: \\w is not supported" },
		{ "x\\", "character 2 of the pattern: a backslash with nothing behind it" },
		{ "\\x{110000}", "is no code point" },
		{ "\\u12", "is no code point" },
		{ "^a", "character 1 of the pattern: ^ as an anchor is not supported" },
		{ "*a", "* has nothing before it to repeat" },
		{ "a{x}", "{ begins no {n,m}; for a brace, write \\{" },
		{ "a{3,2}", "{n,m} with m below n" },
		{ "a{1001}", "more than 1000 repetitions" },
		{ "a{1,2}+", "character 7 of the pattern: + behind {n,m} is not supported" },
		{ "(?<=a)b", "character 1 of the pattern: of groups with ?, only" },
		{ "(?i)b", "of groups with ?, only" },
		{ "(?i:\xC3\xA9)", "in (?i: only letters of ASCII" },
		{ "(?i:ss)", "character 6 of the pattern: ss in (?i: is not supported" },
		{ "(?i:\\p{Lu})", "\\p in (?i: is not supported" },
		{ "(a?)*", "an endless repetition of what may be empty" },
		{ "a**", "a repetition of a repetition" },
		{ "((((a{99}){99}){99}){99})", "longer than 20000 steps" },
	};
	static char got[LINE], many[5000], deep[200];

	for (size_t i = 0; i < OM_LEN(refused); i++) {
		pieces(refused[i].pattern, "", got);
		if (!strstr(got, refused[i].says))
			printf("/%s/ says %s, expected %s\n", refused[i].pattern, got,
			    refused[i].says);
		expect(strstr(got, refused[i].says), "a pattern is refused");
	}
	memset(many, 'a', sizeof many - 1);
	pieces(many, "", got);
	CHECK(strstr(got, "character 4001 of the pattern: more than 4000 characters"));
	memset(deep, '(', 100);
	memset(deep + 100, ')', 99);
	pieces(deep, "", got);
	CHECK(strstr(got, "character 51 of the pattern: more than 50 groups"));
	/* what would take for ever ends */
	pieces(
	    "(?:a|a|a)*(?:a|a|a)*(?:a|a|a)*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", got);
	CHECK(strcmp(got, "too long") == 0);
}

/* ---- files ----------------------------------------------------------------------------------- */

static const char file[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
    "\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"single_word\":false,\"lstrip\":false,"
    "\"rstrip\":false,\"normalized\":false,\"special\":true}],"
    "\"normalizer\":{\"type\":\"NFC\"},"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
    "\"pattern\":{\"Regex\":\"x+\"},\"behavior\":\"Isolated\",\"invert\":false},"
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
    "\"use_regex\":false}]},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
    "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]"
    ","
    "\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[4],\"tokens\":[\"<s>\"]}}},"
    "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true},"
    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"fuse_unk\":false,"
    "\"byte_fallback\":false,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\u0120\":3},"
    "\"merges\":[\"a b\"]}}\n";

/* The file with one change, read for a model of 5 tokens. */
static struct om_tokenizer *
changed(const char *from, const char *to, char why[OM_TOKENIZER_WHY])
{
	char path[] = "/tmp/om-test-XXXXXX";
	const char *at = strstr(file, from);
	int fd = mkstemp(path);
	struct om_tokenizer *t;

	if (!at || fd < 0 || !om_write_all(fd, file, (size_t)(at - file)) ||
	    !om_write_all(fd, to, strlen(to)) ||
	    !om_write_all(fd, at + strlen(from), strlen(at + strlen(from))))
		abort();
	close(fd);
	t = om_tokenizer_open(path, 5, why);
	unlink(path);
	return t;
}

static void
test_files(void)
{
	static const struct {
		const char *from, *to, *says;
	} refused[] = {
		{ "1.0", "2.0", "version is \"2.0\", and only \"1.0\" is supported" },
		{ "\"padding\":null", "\"padding\":{}", "padding is {}, and only null is" },
		{ "\"padding\"", "\"pudding\"", "pudding is not known" },
		{ "\"id\":4", "\"id\":5",
		    "added_tokens[0] has token \"<s>\" as 5, and the model's vocab_size is 5" },
		{ "\"id\":4", "\"id\":-4", "added_tokens[0] gives token \"<s>\" no whole number" },
		{ "\"id\":4", "\"id\":3",
		    "gives token \"<s>\" the id 3, which \"\u0120\" has too" },
		{ "\"<s>\",\"single", "\"ab\",\"single",
		    "added_tokens[0] has another id than \"ab\" in the vocabulary, 2" },
		{ "\"content\":\"<s>\"", "\"content\":1", "added_tokens[0] has no text" },
		{ "\"NFC\"", "\"NFKC\"", "normalizer is of type NFKC, which is not supported" },
		{ "\"Split\"", "\"Metaspace\"",
		    "pre_tokenizer.pretokenizers[0] is of type Metaspace, which is not" },
		{ "Isolated", "Contiguous",
		    "pretokenizers[0].behavior is \"Contiguous\", and only" },
		{ "Isolated", "Removed", "pre_tokenizer.pretokenizers[0] removes its matches" },
		{ "\"behavior\":\"Isolated\",", "",
		    "pre_tokenizer.pretokenizers[0] has no behavior" },
		{ "\"x+\"", "\"\\\\w+\"",
		    "pre_tokenizer.pretokenizers[0].pattern.Regex is not supported: character 1 of "
		    "the "
		    "pattern: \\w is" },
		{ "{\"Regex\":\"x+\"}", "3", "pretokenizers[0].pattern is neither a Regex nor" },
		{ "\"pretokenizers\":[", "\"pretokenizers\":[{\"type\":\"ByteLevel\"},",
		    "pre_tokenizer.pretokenizers[1] comes after ByteLevel, which must be the "
		    "last" },
		{ "\"use_regex\":false}]", "\"use_regex\":3}]",
		    "pre_tokenizer.pretokenizers[1].use_regex is 3, and only true|false is" },
		{ "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
		  "\"use_regex\":false}",
		    "{\"type\":\"Digits\"}", "pre_tokenizer has no ByteLevel as its last step" },
		{ "TemplateProcessing", "RobertaProcessing",
		    "post_processor is of type RobertaProcessing, which is not" },
		{ "\"ids\":[4]", "\"ids\":[7]",
		    "post_processor.single[0] is of \"<s>\", of whose ids one is no token" },
		{ "\"ids\":[4]", "\"ids\":[]", "is of \"<s>\", which special_tokens gives no ids" },
		{ "\"A\"", "\"B\"", "post_processor.single[1] is not the one Sequence A" },
		{ ",{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}", "",
		    "post_processor.single has no Sequence A" },
		{ "\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"WordPiece\"",
		    "decoder is of type WordPiece" },
		{ "\"BPE\"", "\"Unigram\"", "model is of type Unigram" },
		{ "\"dropout\":null", "\"dropout\":0.1", "model.dropout is 0.1" },
		{ "\"byte_fallback\":false", "\"byte_fallback\":true",
		    "model.byte_fallback is true" },
		{ "\"ab\":2", "\"ab\":9",
		    "model.vocab has token \"ab\" as 9, and the model's vocab_size is 5" },
		{ "\"ab\":2", "\"ab\":1", "the id 1, which \"b\" has too" },
		{ "\"ab\":2", "\"ac\":2",
		    "model.merges[0] gives \"ab\", which is no token of the vocabulary" },
		{ "\"a b\"", "\"a b\",[\"ab\",\"d\"]",
		    "model.merges[1] is of \"d\", which is no token of the vocabulary" },
		{ "\"a b\"", "\"a b c\"", "model.merges[0] is no pair of tokens" },
		{ "\"a b\"", "3", "model.merges[0] is no pair of tokens" },
		{ "[\"a b\"]", "3", "model.merges is no array" },
		{ "\"model\":", "\"mode\":", "mode is not known" },
		{ "null,", "nil,", "line 1, column " },
	};
	char why[OM_TOKENIZER_WHY];
	struct om_tokenizer *t = changed("null", "null", why);
	size_t n;
	int32_t *id;

	CHECK(t && t->size == 5);
	id = t ? om_tokenizer_encode(t, "ab<s>ba b", 9, &n, why) : NULL;
	CHECK(id && n == 7 && id[0] == 4 && id[1] == 2 && id[2] == 4 && id[3] == 1 && id[4] == 0 &&
	      id[5] == 3 && id[6] == 1);
	free(id);
	CHECK(t && !om_tokenizer_encode(t, "abc", 3, &n, why) &&
	      strcmp(why, "the vocabulary has no token for byte 0x63 of the text") == 0);
	CHECK(t && !om_tokenizer_bytes(t, 5, &n) && !om_tokenizer_bytes(t, -1, &n));
	om_tokenizer_close(t);
	for (size_t i = 0; i < OM_LEN(refused); i++) {
		*why = '\0';
		t = changed(refused[i].from, refused[i].to, why);
		if (t || !strstr(why, refused[i].says))
			printf("%s -> %s: %s, expected %s\n", refused[i].from, refused[i].to, why,
			    refused[i].says);
		expect(!t && strstr(why, refused[i].says), "a file is refused");
		om_tokenizer_close(t);
	}
	CHECK(!om_tokenizer_open("/none/at/all", 5, why) && strstr(why, "No such file"));
}

int
main(int argc, char **argv)
{
	static const char *const names[] = { "gpt2", "neox", "llama3", "qwen", "dolma2", "digits",
		"deepseek", "deepseek3", "removed", "o200k" };

	for (size_t i = 0; argc > 1 && i < OM_LEN(names); i++)
		test_fixture(argv[1], names[i]);
	if (argc > 1)
		test_splits(argv[1]);
	test_patterns();
	test_files();
	return check_end();
}
