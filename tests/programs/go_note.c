/* What a Go linker puts into an executable: a note with the build's number. */
#include <stdio.h>

__asm__(".pushsection .note.go.buildid,\"a\",@note\n"
	".long 4, 8, 4\n"
	".asciz \"Go\"\n"
	".byte 0\n"
	".ascii \"abcd/efg\"\n"
	".popsection");

int main(void)
{
	puts("go");
	return 0;
}
