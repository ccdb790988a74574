/*
 * Two checkpoints of one model, of any layouts: every tensor and moment of the first must be whole
 * in both, and as near in the second as asked. Usage: compare TOLERANCE DIR DIR [PREFIX [SHARE]];
 * 0: the same bits. Prints how far the worst tensor is, of its largest element. PREFIX: only
 * tensors whose name begins so. SHARE: of all elements so many may be farther, or with "sum" it is
 * the sums of their absolute values that have to be near.
 */
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "om_rt.h"

struct whole {
	char *name;
	double *x;
	char *seen;
	uint64_t n;
};
static struct {
	struct whole *a;
	uint32_t n;
} set[2];

static struct whole *
find(int side, const char *name, size_t len, uint64_t end)
{
	struct whole *w = NULL;

	for (uint32_t i = 0; i < set[side].n && !w; i++)
		if (strlen(set[side].a[i].name) == len && !memcmp(set[side].a[i].name, name, len))
			w = &set[side].a[i];
	if (!w) {
		set[side].a = realloc(set[side].a, (set[side].n + 1) * sizeof *set[side].a);
		w = &set[side].a[set[side].n++];
		*w = (struct whole){ om_text("%.*s", (int)len, name), NULL, NULL, 0 };
	}
	if (end > w->n) {
		w->x = realloc(w->x, end * sizeof *w->x);
		w->seen = realloc(w->seen, end);
		memset(w->seen + w->n, 0, end - w->n);
		w->n = end;
	}
	return w;
}

static void
load(int side, const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *e;

	while (d && (e = readdir(d))) {
		struct om_st st;
		char *path = om_text("%s/%s", dir, e->d_name);
		const char *fault;

		if (!strstr(e->d_name, ".safetensors") || strstr(e->d_name, ".json"))
			continue;
		if ((fault = om_st_open(&st, path))) {
			printf("FAIL %s: %s\n", path, fault);
			exit(1);
		}
		for (uint32_t i = 0; i < st.n; i++) {
			const struct om_st_tensor *t = &st.tensor[i];
			const char *cut = strchr(t->name, '[');
			bool wide = !strcmp(t->dtype, "F64");
			size_t size = wide ? 8 : !strcmp(t->dtype, "BF16") ? 2 : 4;
			uint64_t first = 0, bytes = t->end - t->begin, n = bytes / size;
			void *data = malloc(bytes);
			float *narrow = malloc(n * sizeof *narrow);
			struct whole *w;

			if (cut)
				first = strtoull(cut + 1, NULL, 10);
			w = find(side, t->name, cut ? (size_t)(cut - t->name) : strlen(t->name),
			    first + n);
			om_pread_all(st.fd, data, bytes, st.data + t->begin);
			om_st_floats(t->dtype, data, n, narrow);
			for (uint64_t k = first; k < first + n; k++) {
				w->x[k] =
				    wide ? ((double *)data)[k - first] : (double)narrow[k - first];
				if (w->seen[k]++) {
					printf("FAIL %s: element %llu twice\n", w->name,
					    (unsigned long long)k);
					exit(1);
				}
			}
			free(data);
			free(narrow);
		}
		om_st_close(&st);
		free(path);
	}
	if (d)
		closedir(d);
}

int
main(int argc, char **argv)
{
	double tolerance = atof(argv[1]), worst = 0, sums[2] = { 0 }, beyond = 0, all = 0;
	const char *prefix = argc > 4 ? argv[4] : "", *share = argc > 5 ? argv[5] : "";
	const char *where = "nothing";

	for (int i = 0; i < 2; i++)
		load(i, argv[2 + i]);
	if (!set[0].n || set[0].n != set[1].n) {
		printf("FAIL %u tensors against %u\n", set[0].n, set[1].n);
		return 1;
	}
	for (uint32_t i = 0; i < set[0].n; i++) {
		struct whole *a = &set[0].a[i], *b = find(1, a->name, strlen(a->name), 0);
		double far = 0, top = 1e-12;

		if (strncmp(a->name, prefix, strlen(prefix)))
			continue;
		if (a->n != b->n || memchr(a->seen, 0, a->n) || memchr(b->seen, 0, b->n)) {
			printf("FAIL %s: not whole\n", a->name);
			return 1;
		}
		for (uint64_t k = 0; k < a->n; k++) {
			far = fmax(far, fabs(a->x[k] - b->x[k]));
			far = isfinite(b->x[k]) ? far : INFINITY;
			top = fmax(top, fabs(a->x[k]));
			sums[0] += fabs(a->x[k]);
			sums[1] += fabs(b->x[k]);
		}
		for (uint64_t k = 0; k < a->n; k++)
			beyond += !(fabs(a->x[k] - b->x[k]) <= tolerance * top);
		all += (double)a->n;
		if (!tolerance && memcmp(a->x, b->x, a->n * sizeof *a->x))
			far = fmax(far, 1e-30);
		if (far / top >= worst) {
			worst = far / top;
			where = a->name;
		}
	}
	if (!strcmp(share, "sum")) {
		printf("%.4f of the sum\n", sums[1] / sums[0]);
		return !(fabs(sums[1] / sums[0] - 1) <= tolerance);
	}
	if (*share) {
		printf("%.1e of them, %.2e at %s\n", beyond / all, worst, where);
		return !(beyond <= atof(share) * all);
	}
	printf("%.2e at %s\n", worst, where);
	return !(worst <= tolerance);
}
