/*
 * CRC-32C (Castagnoli, reflected polynomial 0x82F63B78): by the processor's instruction where it
 * has one, else eight bytes a round from tables (Kounavis and Berry, "slicing-by-8", 2005).
 */
#include <string.h>

#include "om_rt.h"

uint32_t
om_crc32c_soft(uint32_t crc, const void *p, size_t n)
{
	static uint32_t table[8][256];
	static bool ready;
	const unsigned char *s = p;

	if (!ready) {
		for (uint32_t i = 0; i < 256; i++) {
			uint32_t c = i;

			for (int bit = 0; bit < 8; bit++)
				c = c >> 1 ^ (c & 1 ? 0x82F63B78 : 0);
			table[0][i] = c;
		}
		for (int t = 1; t < 8; t++)
			for (uint32_t i = 0; i < 256; i++)
				table[t][i] =
				    table[t - 1][i] >> 8 ^ table[0][table[t - 1][i] & 255];
		ready = true;
	}
	crc = ~crc;
	for (; n >= 8; s += 8, n -= 8) {
		uint32_t lo = crc ^ ((uint32_t)s[0] | (uint32_t)s[1] << 8 | (uint32_t)s[2] << 16 |
					(uint32_t)s[3] << 24);

		crc = table[7][lo & 255] ^ table[6][lo >> 8 & 255] ^ table[5][lo >> 16 & 255] ^
		      table[4][lo >> 24] ^ table[3][s[4]] ^ table[2][s[5]] ^ table[1][s[6]] ^
		      table[0][s[7]];
	}
	for (; n; s++, n--)
		crc = crc >> 8 ^ table[0][(crc ^ *s) & 255];
	return ~crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t
hard(uint32_t crc, const unsigned char *s, size_t n)
{
	uint64_t c = ~crc, word;

	for (; n >= 8; s += 8, n -= 8) {
		memcpy(&word, s, 8);
		c = __builtin_ia32_crc32di(c, word);
	}
	for (; n; s++, n--)
		c = __builtin_ia32_crc32qi((uint32_t)c, *s);
	return ~(uint32_t)c;
}
#endif

uint32_t
om_crc32c(uint32_t crc, const void *p, size_t n)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("sse4.2"))
		return hard(crc, p, n);
#endif
	return om_crc32c_soft(crc, p, n);
}
