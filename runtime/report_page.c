/* The page that reports are put into, as it lies in the folder page. */
#include "om_rt.h"

#define PART(symbol, file)                                                \
	__asm__(".section .rodata\n\t.globl " #symbol "\n" #symbol ":\n"  \
		"\t.incbin \"page/" file "\"\n\t.byte 0\n\t.previous\n"); \
	extern const char symbol[]
PART(om_page_html, "report.html");
PART(om_page_css, "page.css");
PART(om_page_report_css, "report.css");
PART(om_page_js, "page.js");
PART(om_page_report_js, "report.js");

const struct om_page_part om_page_parts[] = {
	{ "page.css", om_page_css },
	{ "report.css", om_page_report_css },
	{ "data", NULL },
	{ "page.js", om_page_js },
	{ "report.js", om_page_report_js },
	{ NULL, om_page_html },
};
