// SPDX-License-Identifier: Apache-2.0
// A host whose recordings are removed after twenty of forty operations: PLUGIN DIRECTORY.
#include "host.h"

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    load(argv[1]);
    comm = init(0xc0ffee);
    for (int i = 0; i < 20; i++) all_reduce(comm, i);
    wait_ms(500);
    DIR *dir = opendir(argv[2]);
    if (!dir) fail("opendir");
    struct dirent *entry;
    while ((entry = readdir(dir)))
        if (entry->d_name[0] != '.' && unlinkat(dirfd(dir), entry->d_name, 0) != 0) fail("unlinkat");
    closedir(dir);
    wait_ms(2500);
    for (int i = 20; i < 40; i++) all_reduce(comm, i);
    nccl->finalize(comm);
    say("survived\n");
    return 0;
}
