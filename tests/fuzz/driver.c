/*
 * A harness without libFuzzer: runs it on every file of a folder, and on so many random changes of
 * them. Usage: NAME SEEDS CHANGES. The input that a sanitizer stops at is left in NAME.crash.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sanitizer/common_interface_defs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"

enum { SEEDS_MOST = 256, SIZE_MOST = 1 << 17 };

static struct {
	uint8_t *p;
	size_t n;
} seed[SEEDS_MOST];
static size_t n_seeds, n_input;
static uint8_t input[2 * SIZE_MOST];
static char crash[300];
static uint64_t state = 1;

/* SplitMix64. */
static uint64_t
next_random(void)
{
	uint64_t z = state += 0x9e3779b97f4a7c15;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

static void
read_seeds(const char *folder)
{
	DIR *d = opendir(folder);
	char path[600];

	for (struct dirent *e; d && (e = readdir(d)) && n_seeds < SEEDS_MOST;) {
		FILE *f;

		snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
		if (*e->d_name == '.' || !(f = fopen(path, "rb")))
			continue;
		seed[n_seeds].p = malloc(SIZE_MOST);
		seed[n_seeds].n = fread(seed[n_seeds].p, 1, SIZE_MOST, f);
		n_seeds++;
		fclose(f);
	}
	if (d)
		closedir(d);
}

/* One place of the input: another byte, bytes cut, bytes of a seed, or its own once more. */
static void
change(void)
{
	size_t at = next_random() % (n_input + 1), n = 1 + next_random() % 16, from, i;

	switch (next_random() % 4) {
	case 0:
		if (at < n_input)
			input[at] = (uint8_t)next_random();
		break;
	case 1:
		n = at + n > n_input ? n_input - at : n;
		memmove(input + at, input + at + n, n_input - at - n);
		n_input -= n;
		break;
	default:
		i = next_random() % n_seeds;
		if (n_input + n > SIZE_MOST || seed[i].n < n)
			break;
		from = next_random() % (seed[i].n - n + 1);
		memmove(input + at + n, input + at, n_input - at);
		memcpy(input + at, seed[i].p + from, n);
		n_input += n;
		break;
	}
}

/* It is there when a sanitizer ends the process. */
static void
keep(void)
{
	int fd = open(crash, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	if (fd < 0 || write(fd, input, n_input) != (ssize_t)n_input)
		abort();
	close(fd);
}

int
main(int argc, char **argv)
{
	size_t changes = argc > 2 ? strtoul(argv[2], NULL, 10) : 0, done = 0;
	int console = dup(1), errors = dup(2), null = open("/dev/null", O_WRONLY);

	if (argc != 3)
		return 2;
	snprintf(crash, sizeof crash, "%.290s.crash", argv[0]);
	read_seeds(argv[1]);
	/* what the harness says is not looked at, what a sanitizer says is */
	dup2(null, 1);
	dup2(null, 2);
	__sanitizer_set_report_fd((void *)(intptr_t)errors);
	for (size_t i = 0; i < n_seeds + changes && n_seeds; i++, done++) {
		size_t of = i < n_seeds ? i : next_random() % n_seeds;

		n_input = seed[of].n;
		memcpy(input, seed[of].p, n_input);
		for (size_t k = i < n_seeds ? 0 : 1 + next_random() % 6; k; k--)
			change();
		keep();
		LLVMFuzzerTestOneInput(input, n_input);
	}
	unlink(crash);
	dprintf(console, "%zu inputs of %zu seeds\n", done, n_seeds);
	return n_seeds ? 0 : 1;
}
