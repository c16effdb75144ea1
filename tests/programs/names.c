/* Preloaded into keygate: `origin.test` is 127.0.0.1, `missing.test` does not exist, and look-ups of
 * `hang.test` never return. Writes one byte for each of the latter to the file LOOK_UPS. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int look_ups = -1;

/* Runs before the sandbox of keygate. */
__attribute__((constructor)) static void open_file(void) {
	const char *path = getenv("LOOK_UPS");
	if (path)
		look_ups = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
		struct addrinfo **found) {
	int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
		dlsym(RTLD_NEXT, "getaddrinfo");
	if (name && !strcmp(name, "hang.test")) {
		if (write(look_ups, "x", 1) != 1)
			abort();
		for (;;)
			pause();
	}
	if (name && !strcmp(name, "missing.test"))
		return EAI_NONAME;
	if (name && !strcmp(name, "origin.test"))
		name = "127.0.0.1";
	return next(name, service, hints, found);
}
