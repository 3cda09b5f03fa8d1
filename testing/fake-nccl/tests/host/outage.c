// SPDX-License-Identifier: Apache-2.0
// A host whose recording cannot be created at first: PLUGIN FILE HOW. The file FILE is where the
// recordings' directory should be; the host removes it after twenty operations.
//   time  then it waits
//   next  then it creates another communicator
//   end   it ends at once
#include "host.h"

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    load(argv[1]);
    comm = init(0xc0ffee);
    if (mask == 0) fail("no events are wanted");
    for (int i = 0; i < 20; i++) all_reduce(comm, i);
    wait_ms(300);
    if (unlink(argv[2]) != 0) fail("unlink");
    void *second = NULL;
    if (!strcmp(argv[3], "time")) wait_ms(2500);
    if (!strcmp(argv[3], "next")) {
        second = init(0xbeef);
        wait_ms(300);
        if (access(argv[2], F_OK) != 0) fail("it was not tried again");
        nccl->finalize(second);
    }
    for (int i = 20; i < 40; i++) all_reduce(comm, i);
    nccl->finalize(comm);
    say("survived\n");
    return 0;
}
