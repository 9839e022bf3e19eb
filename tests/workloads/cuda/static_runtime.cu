// static_runtime: a CUDA program as nvcc links it by default, with libcudart inside. Prints the
// result of each runtime call as one JSON object: {"cudaGetDeviceCount": "cudaSuccess", …}
#include <cstdio>
#include <cuda_runtime.h>

__global__ void add(const float *a, const float *b, float *c) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    c[i] = a[i] + b[i];
}

int main() {
    const int blocks = 4, threads = 64;
    int devices = 0;
    float *values = nullptr;
    const char *count = cudaGetErrorName(cudaGetDeviceCount(&devices));
    const char *allocation = cudaGetErrorName(cudaMalloc(&values, blocks * threads * sizeof *values));
    add<<<blocks, threads>>>(values, values, values);
    const char *launch = cudaGetErrorName(cudaGetLastError());
    std::printf("{\"cudaGetDeviceCount\": \"%s\", \"cudaMalloc\": \"%s\", \"launch\": \"%s\"}\n", count, allocation, launch);
    return 0;
}
