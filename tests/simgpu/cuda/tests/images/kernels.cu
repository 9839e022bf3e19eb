// Source of the images beside this file, compiled by nvcc 13.5:
//   nvcc -arch=sm_90 --cubin -o kernels.cubin kernels.cu
//   nvcc -gencode arch=compute_90,code=[sm_90,compute_90] -gencode arch=compute_80,code=sm_80 \
//       --fatbin --compress-mode=size -o zstd.fatbin kernels.cu
//   nvcc -gencode arch=compute_90,code=compute_90 --fatbin --compress-mode=speed \
//       -o lz4.fatbin kernels.cu
//   nvcc -gencode arch=compute_120,code=sm_120 --fatbin --compress-mode=size \
//       -o newer.fatbin kernels.cu
__device__ int count = 5;
__constant__ float table[16];
__managed__ int shared_with_host = 3;

struct Box {
    double factor;
    char tag;
    int extents[3];
};

extern "C" __global__ void __launch_bounds__(256) scale(float *x, int n, Box box) {
    __shared__ float tile[256];
    tile[threadIdx.x] = x[threadIdx.x] * table[3];
    __syncthreads();
    if (n > count + shared_with_host) x[threadIdx.x] = tile[0] + box.factor;
}
