/*
 * A tokenizer.json and a text, apart by a line "=": what is read encodes the text, and its tokens
 * are decoded again. Without that line all is the file, and the text is empty.
 */
#include <stdlib.h>
#include <string.h>

#include "../../runtime/om_rt.h"
#include "../../runtime/tokenizer.h"
#include "fuzz.h"

enum { VOCAB = 1000 };

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	const char *path, *text = "";
	char why[OM_TOKENIZER_WHY];
	struct om_tokenizer *t;
	struct om_held held = { .n = 0 };
	size_t size = n, count = 0, bytes;
	int32_t *id = NULL;

	for (size_t i = 0; i + 3 <= n && size == n; i++)
		if (memcmp(data + i, "\n=\n", 3) == 0)
			size = i;
	if (size < n)
		text = (const char *)data + size + 3;
	path = fuzz_file("tokenizer.json", data, size);
	fuzz_begin();
	t = om_tokenizer_open(path, VOCAB, why);
	if (t)
		id = om_tokenizer_encode(t, text, size < n ? n - size - 3 : 0, &count, why);
	for (size_t i = 0; id && i < count; i++) {
		const char *s = om_tokenizer_bytes(t, id[i], &bytes);

		if (!s) /* what it has given is a token */
			abort();
		om_utf8_print(stdout, &held, s, bytes, i + 1 == count);
	}
	free(id);
	om_tokenizer_close(t);
	fuzz_clean();
	return 0;
}
