/* What a data file is by its first bytes: NumPy's header, and formats that hold no plain tokens. */
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"

/* Finds 'name': in the header's text and gives what follows. */
static const char *
field(const char *s, const char *name)
{
	const char *at = strstr(s, name);

	if (!at)
		return NULL;
	at += strlen(name);
	at += strspn(at, " ");
	if (*at++ != ':')
		return NULL;
	return at + strspn(at, " ");
}

/* The header's dictionary, terminated, in text; NULL, or what is wrong with it. */
static const char *
npy_dictionary(const unsigned char *p, size_t n, char *text, size_t room, size_t *head)
{
	static char why[80];
	size_t len, skip;

	if (!om_is_npy(p, n) || n < 10)
		return "has no .npy header";
	if (p[6] != 1 && p[6] != 2) {
		snprintf(why, sizeof why, "is .npy version %d, 1 and 2 are read", p[6]);
		return why;
	}
	skip = p[6] == 1 ? 10 : 12;
	if (n < skip)
		return "ends within its .npy header";
	len = (size_t)p[8] | (size_t)p[9] << 8;
	if (p[6] == 2)
		len |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
	if (len >= room)
		return "has an .npy header of over 1,023 bytes, which a plain array has not";
	if (n < skip + len)
		return "ends within its .npy header";
	memcpy(text, p + skip, len);
	text[len] = 0;
	*head = skip + len;
	return strlen(text) == len ? NULL : "has a damaged .npy header";
}

bool
om_is_npy(const unsigned char *p, size_t n)
{
	return n >= 6 && memcmp(p, "\x93NUMPY", 6) == 0;
}

/* numpy/lib/format.py: magic, version, length, and a Python dictionary padded by spaces. */
const char *
om_npy_parse(const unsigned char *p, size_t n, struct om_npy *npy)
{
	static char why[200];
	char text[1024], *end;
	const char *descr, *order, *shape, *bad;

	*npy = (struct om_npy){ 0 };
	if ((bad = npy_dictionary(p, n, text, sizeof text, &npy->head)))
		return bad;
	descr = field(text, "'descr'");
	order = field(text, "'fortran_order'");
	shape = field(text, "'shape'");
	if (!descr || !order || !shape || *shape != '(')
		return "has a damaged .npy header";
	if (*descr != '\'' || !strchr("<>|=", descr[1]) || !strchr("biu", descr[2])) {
		snprintf(why, sizeof why,
		    "holds dtype %.*s; tokens are whole numbers, as uint16 and uint32 are",
		    (int)strcspn(descr, ",}"), descr);
		return why;
	}
	npy->whole = true;
	npy->sign = descr[2] == 'i';
	npy->truth = descr[2] == 'b';
	npy->width = descr[3] && strchr("1248", descr[3]) ? (uint32_t)(descr[3] - '0') : 0;
	if (!npy->width || descr[4] != '\'' ||
	    (npy->width > 1 && (descr[1] != '<' || npy->truth))) {
		snprintf(why, sizeof why,
		    "holds dtype %.*s; read are little-endian numbers of 1, 2, 4 or 8 bytes",
		    (int)strcspn(descr, ",}"), descr);
		return why;
	}
	if (strncmp(order, "False", 5) != 0)
		return "is in Fortran order, column after column";
	npy->tokens = strtoull(shape + 1, &end, 10);
	if (end == shape + 1 || shape[1] == '-' || *end != ',' ||
	    end[1 + strspn(end + 1, " ")] != ')') {
		snprintf(why, sizeof why, "has shape %.*s, only one dimension is read",
		    (int)strcspn(shape, ")") + 1, shape);
		return why;
	}
	npy->whole = false; /* nothing is left to convert */
	return npy->tokens > UINT64_MAX / 8 ? "has a damaged .npy header" : NULL;
}

/*
 * Formats that begin with bytes of their own and are not read, and what to do about them. llm.c's
 * magic is 20240522, and Megatron's is of its index, which lies beside the tokens.
 */
#define MAGIC(text) text, sizeof(text) - 1
#define UNPACK "unpack it, and give what is in it"
#define TOKENIZE "write its tokens as uint16 or uint32, or its text as text files"
static const struct {
	size_t at;
	const char *magic;
	size_t n;
	const char *what;
} known[] = {
	{ 0, MAGIC("\x8a\xd8\x34\x01\x01\0\0\0"),
	    "is a file of llm.c of questions and answers, not of tokens alone; leave it out" },
	{ 0, MAGIC("MMIDIDX\0\0"),
	    "is the index of a Megatron data set; name the .bin beside it, which it says how to "
	    "read" },
	{ 0, MAGIC("TNTIDX\0\0"), "is the index of a fairseq data set, not tokens; leave it out" },
	{ 0, MAGIC("LITPKDS"), "is a packed data set of lit-gpt; write its tokens alone" },
	{ 0, MAGIC("\x1f\x8b\x08\0"), "is compressed by gzip; " UNPACK },
	{ 0, MAGIC("\x1f\x8b\x08\x08"), "is compressed by gzip; " UNPACK },
	{ 0, MAGIC("\x28\xb5\x2f\xfd"), "is compressed by zstd; " UNPACK },
	{ 0,
	    MAGIC("\xfd"
		  "7zXZ\0"),
	    "is compressed by xz; " UNPACK },
	{ 0, MAGIC("BZh91AY&SY"), "is compressed by bzip2; " UNPACK },
	{ 0, MAGIC("\x04\x22\x4d\x18"), "is compressed by lz4; " UNPACK },
	{ 0, MAGIC("7z\xbc\xaf\x27\x1c"), "is a 7z archive; " UNPACK },
	{ 0, MAGIC("PK\3\4"), "is a zip archive, as .npz and PyTorch's files are; " UNPACK },
	{ 257, MAGIC("ustar"), "is a tar archive; " UNPACK },
	{ 0, MAGIC("PAR1"), "is a Parquet file; " TOKENIZE },
	{ 0, MAGIC("ARROW1\0\0"), "is an Arrow file; " TOKENIZE },
	{ 0, MAGIC("\x89HDF\r\n\x1a\n"), "is an HDF5 file; " TOKENIZE },
	{ 0, MAGIC("version https://git-lfs.github.com/"),
	    "is a pointer of Git LFS in place of the file; get that by git lfs pull" },
};

const char *
om_filetype_known(const unsigned char *p, size_t n, uint64_t size)
{
	uint64_t header = 0;

	for (size_t i = 0; i < OM_LEN(known); i++)
		if (known[i].at + known[i].n <= n &&
		    memcmp(p + known[i].at, known[i].magic, known[i].n) == 0)
			return known[i].what;
	for (int i = 8; n > 9 && i-- > 0;)
		header = header << 8 | p[i];
	if (n > 9 && header < size - 8 &&
	    (memcmp(p + 8, "{\"", 2) == 0 || memcmp(p + 8, "{}", 2) == 0))
		return "is a safetensors file, weights and not tokens; leave it out";
	/* a stream of Arrow's: the mark of a message, its length, and a table of offsets */
	if (n > 16 && memcmp(p, "\xff\xff\xff\xff", 4) == 0 && !p[7] && !p[6] && p[8] == 16 &&
	    !p[9] && !p[10] && !p[11])
		return "is an Arrow stream, as Hugging Face's data sets are; " TOKENIZE;
	return NULL;
}

bool
om_is_text(const unsigned char *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if ((p[i] < ' ' && !strchr("\t\n\r", p[i])) || p[i] > '~' || !p[i])
			return false;
	return n >= 32; /* of fewer bytes, chance may be the reason */
}

uint64_t
om_number_at(const unsigned char *p, uint32_t width)
{
	uint64_t x = 0;

	for (uint32_t i = width; i-- > 0;)
		x = x << 8 | p[i];
	return x;
}

bool
om_is_wider(const unsigned char *p, size_t n, uint32_t width)
{
	bool some = false;

	for (size_t i = 0; i + 2 * width <= n; i += 2 * width) {
		if (om_number_at(p + i + width, width))
			return false;
		some = some || om_number_at(p + i, width);
	}
	return some && n >= 64 * width; /* of fewer numbers, chance may be the reason */
}

bool
om_tokens_fit(const unsigned char *p, size_t n, uint32_t width, uint64_t vocab)
{
	for (size_t i = 0; i + width <= n; i += width)
		if (om_number_at(p + i, width) >= vocab)
			return false;
	return !om_is_wider(p, n, width);
}
