/*@banner the trainer's main function and what is embedded in it*/
#include "model.h"

/* Files of this tree that the trainer carries. */
#define EMBED(symbol, file) \
	__asm__(".section .rodata\n\t.globl " #symbol "\n" #symbol ":\n" \
		"\t.incbin \"" file "\"\n\t.byte 0\n\t.previous\n")
EMBED(om_manifest, "manifest.yaml");
EMBED(om_plan, "PLAN.txt");

int
main(int argc, char **argv)
{
	return om_main(om_models, argc, argv);
}
