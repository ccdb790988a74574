/*
 * Host tool: turns files into one C array table, so that olmogen is one file.
 * Usage: embed FILE... > embedded.c. Each file keeps its relative path as its name.
 */
#include <stdio.h>
#include <stdlib.h>

int
main(int argc, char **argv)
{
	puts("#include \"base/base.h\"\n");
	for (int i = 1; i < argc; i++) {
		FILE *f = fopen(argv[i], "rb");
		int c, n = 0;
		if (!f) {
			perror(argv[i]);
			return 1;
		}
		printf("static const unsigned char data%d[] = {", i);
		for (; (c = getc(f)) != EOF; n++)
			printf("%s%d,", n % 24 ? "" : "\n\t", c);
		printf("\n\t0 /* %d bytes of %s */\n};\n", n, argv[i]);
		fclose(f);
	}
	puts("\nconst struct embedded embedded[] = {");
	for (int i = 1; i < argc; i++)
		printf("\t{ \"%s\", data%d, sizeof data%d - 1 },\n", argv[i], i, i);
	printf("};\nconst uint32_t n_embedded = %d;\n", argc - 1);
	return 0;
}
