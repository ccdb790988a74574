/*
 * The bar of a run on a terminal: how far it is, and its loss from the first step to the last in a
 * few blocks. In Unicode and colour where the terminal has them (NO_COLOR: no-color.org).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "om_rt.h"

void
om_bar_open(struct om_bar *b)
{
	static const char *const says[] = { "LC_ALL", "LC_CTYPE", "LANG" };
	const char *no_colour = getenv("NO_COLOR"), *locale = NULL;

	*b = (struct om_bar){ .colour = !no_colour || !*no_colour, .span = 1 };
	for (size_t i = 0; i < OM_LEN(says) && !(locale && *locale); i++)
		locale = getenv(says[i]);
	for (; locale && *locale && !b->unicode; locale++)
		b->unicode = !strncasecmp(locale, "utf-8", 5) || !strncasecmp(locale, "utf8", 4);
}

/* When all blocks are full, one stands for what two did. */
void
om_bar_loss(struct om_bar *b, double loss)
{
	if (!isfinite(loss))
		return;
	b->sum += loss;
	if (++b->steps < b->span)
		return;
	b->loss[b->n++] = b->sum / (double)b->steps;
	b->sum = 0;
	b->steps = 0;
	if (b->n < OM_BAR_BLOCKS)
		return;
	b->n /= 2;
	b->span *= 2;
	for (uint32_t i = 0; i < b->n; i++)
		b->loss[i] = (b->loss[2 * i] + b->loss[2 * i + 1]) / 2;
}

void
om_bar_print(const struct om_bar *b, int room, double share)
{
	static const char *const part[] = { "", "▏", "▎", "▍", "▌", "▋", "▊", "▉" };
	const char *on = b->colour ? "\033[36m" : "", *off = b->colour ? "\033[0m" : "";
	int parts = (int)(share * room * 8), full = parts / 8;

	if (!b->unicode) {
		printf("[%s", on);
		for (int i = 0; i < room; i++) {
			if (i == full)
				printf("%s", off);
			putchar(i < full ? '#' : ' ');
		}
		printf("%s]", full == room ? off : "");
		return;
	}
	printf("▕%s", on);
	for (int i = 0; i < full; i++)
		printf("█");
	printf("%s%s%*s▏", full < room ? part[parts % 8] : "", off,
	    room - full - (full < room && parts % 8), "");
}

/* So many columns wide; 0: there is nothing to show, or nothing to show it with. */
int
om_bar_blocks(const struct om_bar *b, bool print)
{
	/* bytes E2 96 81 to 88 */
	static const char lowest[] = "▁";
	double least = INFINITY, most = -INFINITY;

	if (!b->unicode || b->n < 2)
		return 0;
	for (uint32_t i = 0; i < b->n; i++) {
		least = b->loss[i] < least ? b->loss[i] : least;
		most = b->loss[i] > most ? b->loss[i] : most;
	}
	if (print)
		printf(" ");
	for (uint32_t i = 0; print && i < b->n; i++) {
		double high = most > least ? (b->loss[i] - least) / (most - least) : 0;

		printf("%.2s%c", lowest, lowest[2] + (int)(7.999 * high));
	}
	return 1 + (int)b->n;
}
