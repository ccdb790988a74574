/*
 * Pages that open from disk: a template of the folder page, whose slots take other files of it and
 * data. All of them are in the trainer.
 */
#include <string.h>

#include "om_rt.h"

#define FILES(X)                         \
	X(om_page_css, "page.css")       \
	X(om_page_js, "page.js")         \
	X(om_report_html, "report.html") \
	X(om_report_css, "report.css")   \
	X(om_report_js, "report.js")     \
	X(om_bench_html, "bench.html")   \
	X(om_bench_js, "bench.js")
#define EMBED(symbol, file)                                               \
	__asm__(".section .rodata\n\t.globl " #symbol "\n" #symbol ":\n"  \
		"\t.incbin \"page/" file "\"\n\t.byte 0\n\t.previous\n"); \
	extern const char symbol[];
FILES(EMBED)

#define ROW(symbol, file) { file, symbol },
static const struct {
	const char *name, *text;
} files[] = { FILES(ROW) };

/* The file whose name begins a text; NULL: none. */
static const char *
file_named(const char *name)
{
	for (size_t i = 0; i < OM_LEN(files); i++)
		if (strncmp(name, files[i].name, strlen(files[i].name)) == 0)
			return files[i].text;
	return NULL;
}

void
om_page_write(FILE *f, const char *name, void (*data)(FILE *f, void *arg), void *arg)
{
	static const char slot[] = "<!--@slot ";

	for (const char *s = file_named(name), *end; *s; s = end) {
		const char *text;

		end = s + strcspn(s, "\n") + 1;
		if (strncmp(s, slot, sizeof slot - 1) != 0)
			fwrite(s, 1, (size_t)(end - s), f);
		else if ((text = file_named(s + sizeof slot - 1)))
			fputs(text, f);
		else
			data(f, arg);
	}
}
