/*@banner the compiled kernels, embedded*/
#include <stddef.h>

#include "gpu.h"

#define CUBIN(folder, name) \
	__asm__(".section .rodata\n\t.balign 64\n" \
		"cubin_" #folder "_" #name ":\n" \
		"\t.incbin \"" #folder "/" #name ".cubin\"\n\t.previous\n"); \
	extern const unsigned char cubin_##folder##_##name[];
/*@slot cubins*/
