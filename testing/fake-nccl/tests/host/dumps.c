// SPDX-License-Identifier: Apache-2.0
// Operations of six communicators hang at once, and one of a seventh a little later.
#include "host.h"

static void whole(void *context, uint64_t seq) {
    void *coll = event(context, 2, NULL, seq);
    nccl->stop(coll);
    nccl->stop(event(context, 64, coll, 0));
}

static void hang(void *context) {
    void *coll = event(context, 2, NULL, 9);
    nccl->stop(coll);
    event(context, 64, coll, 0);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    load(argv[1]);
    void *all[6];
    for (int i = 0; i < 6; i++) all[i] = init(0xc0 + i);
    comm = init(0xc7);
    for (int i = 0; i < 6; i++) whole(all[i], 0);
    whole(comm, 0);
    wait_ms(1500);
    for (int i = 0; i < 6; i++) hang(all[i]);
    wait_ms(600);
    hang(comm);
    wait_ms(7000);
    puts("survived");
    fflush(stdout);
    _exit(0);
}
