// SPDX-License-Identifier: Apache-2.0
// A host that unloads the plugin, as NCCL does, and ends by HOW with a status: PLUGIN HOW STATUS.
#include "host.h"

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    load(argv[1]);
    comm = init(0xc0ffee);
    nccl->finalize(comm);
    if (dlclose(library) != 0) fail(dlerror());
    int status = atoi(argv[3]);
    if (strcmp(argv[2], "_exit") == 0) _exit(status);
    if (strcmp(argv[2], "exit") == 0) exit(status);
    return status;
}
