// SPDX-License-Identifier: Apache-2.0
// The functions of libcuda.so.1 that torch itself calls, if the stand-in is the only CUDA.
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active)
{
    (void)device;
    *flags = 0;
    *is_active = 1;
    return 0;
}

int cuCtxGetCurrent(void** context)
{
    *context = (void*)1;
    return 0;
}

int cuCtxSetCurrent(void* context)
{
    (void)context;
    return 0;
}
