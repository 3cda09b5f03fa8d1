// SPDX-License-Identifier: Apache-2.0
// A rank whose job hangs, with the recipe of docs/hang.md in recipe.h: CUDA NCCL RANK ID-FILE.
// Prints after how many seconds it exited. Exit codes: 7 the recipe ended it; 1 it continued; 2 a
// precondition failed.
#include "recipe.h"

#include <stdlib.h>
#include <time.h>

#define FLOATS (1 << 20)

typedef struct {
    char bytes[128];
} Id;

static void* nccl;
static void* cuda;

static void* find(void* library, const char* name)
{
    void* found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "no %s\n", name);
        exit(2);
    }
    return found;
}

static void check(const char* what, int status)
{
    if (status != 0) {
        fprintf(stderr, "%s: %d\n", what, status);
        exit(2);
    }
}

int ncclCommAbort(ncclComm_t comm)
{
    return ((int (*)(ncclComm_t))find(nccl, "ncclCommAbort"))(comm);
}

static Id meet(int rank, const char* file)
{
    Id id;
    char part[4096];
    snprintf(part, sizeof part, "%s.part", file);
    if (rank == 0) {
        check("ncclGetUniqueId", ((int (*)(Id*))find(nccl, "ncclGetUniqueId"))(&id));
        FILE* out = fopen(part, "w");
        check("id", out == NULL || fwrite(&id, sizeof id, 1, out) != 1 || fclose(out) != 0);
        check("id", rename(part, file));
        return id;
    }
    FILE* in;
    while ((in = fopen(file, "r")) == NULL) usleep(5000);
    check("id", fread(&id, sizeof id, 1, in) != 1);
    fclose(in);
    return id;
}

int main(int argc, char** argv)
{
    check("arguments", argc != 5);
    cuda = dlopen(argv[1], RTLD_NOW);
    check("dlopen", cuda == NULL);
    nccl = ((void* (*)(const char*))find(cuda, "cpucuda_open_nccl"))(argv[2]);
    check("cpucuda_open_nccl", nccl == NULL);
    int rank = atoi(argv[3]);
    ncclComm_t comm;
    void *stream, *data;
    check("cudaSetDevice", ((int (*)(int))find(cuda, "cudaSetDevice"))(0));
    int (*make)(void**, unsigned) = (int (*)(void**, unsigned))find(cuda, "cudaStreamCreateWithFlags");
    check("cudaStreamCreate", make(&stream, 1));
    check("cudaMalloc", ((int (*)(void**, size_t))find(cuda, "cudaMalloc"))(&data, 4 * FLOATS));
    int (*init)(ncclComm_t*, int, Id, int) =
        (int (*)(ncclComm_t*, int, Id, int))find(nccl, "ncclCommInitRank");
    check("ncclCommInitRank", init(&comm, 2, meet(rank, argv[4]), rank));
    check("abort_on_hang", abort_on_hang(comm));
    int (*reduce)(void*, void*, size_t, int, int, ncclComm_t, void*) =
        (int (*)(void*, void*, size_t, int, int, ncclComm_t, void*))find(nccl, "ncclAllReduce");
    int (*wait)(void*) = (int (*)(void*))find(cuda, "cudaStreamSynchronize");
    for (int i = 0; i < 2; i++) {
        time_t start = time(NULL);
        check("ncclAllReduce", reduce(data, data, FLOATS, 7, 0, comm, stream));
        int status = wait(stream);
        if (hung) {
            printf("%ld\n", (long)(time(NULL) - start));
            return 7;
        }
        check("cudaStreamSynchronize", status);
    }
    return 1;
}
