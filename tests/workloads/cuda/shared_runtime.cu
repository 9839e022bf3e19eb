/* A program of the shared runtime library. Prints what each kind of call returned, as one JSON
   object: codes of the runtime, values that the host gets back, and the attributes of a kernel. */
#include <cstdio>
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>

__constant__ int table[4] = {1, 2, 3, 4};
__device__ int counter = 7;

__global__ void work(int *out, int n) {
    extern __shared__ int scratch[];
    scratch[threadIdx.x] = n + table[0];
    out[threadIdx.x] = scratch[threadIdx.x] + counter;
}

static const char *separator = "{";

static void say(const char *name, long value) {
    printf("%s\"%s\": %ld", separator, name, value);
    separator = ", ";
}

int main() {
    enum { COUNT = 64, SHARED_BYTES = 60000 };
    int devices = 0, host[COUNT], back[COUNT] = {0}, number = 0, current = -1;
    say("count", cudaGetDeviceCount(&devices));
    say("some_devices", devices > 0);
    say("set", cudaSetDevice(0));
    say("get", cudaGetDevice(&current));
    say("current", current);
    cudaDeviceProp properties;
    say("properties", cudaGetDeviceProperties(&properties, 0));
    say("warp", properties.warpSize);
    say("no_device", cudaSetDevice(99));
    say("last", cudaGetLastError());
    say("last_again", cudaPeekAtLastError());

    for (int i = 0; i < COUNT; i++) host[i] = i * i;
    int *memory = nullptr;
    say("malloc", cudaMalloc(&memory, sizeof host));
    say("to", cudaMemcpy(memory, host, sizeof host, cudaMemcpyHostToDevice));
    say("from", cudaMemcpy(back, memory, sizeof back, cudaMemcpyDeviceToHost));
    say("same", back[COUNT - 1] == host[COUNT - 1]);
    cudaPointerAttributes attributes;
    say("device_pointer", cudaPointerGetAttributes(&attributes, memory));
    say("device_type", attributes.type);
    say("host_pointer", cudaPointerGetAttributes(&attributes, host));
    say("host_type", attributes.type);

    say("read_symbol", cudaMemcpyFromSymbol(&number, counter, sizeof number));
    say("symbol", number);
    number = 9;
    say("write_symbol", cudaMemcpyToSymbol(counter, &number, sizeof number));
    number = 0;
    say("read_symbol_again", cudaMemcpyFromSymbol(&number, counter, sizeof number));
    say("symbol_again", number);
    size_t bytes = 0;
    say("symbol_size", cudaGetSymbolSize(&bytes, table));
    say("symbol_bytes", bytes);

    cudaFuncAttributes kernel;
    say("attribute", cudaFuncSetAttribute(work, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
    say("attributes", cudaFuncGetAttributes(&kernel, work));
    say("shared", kernel.maxDynamicSharedSizeBytes);
    int blocks = 0;
    say("occupancy", cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, work, COUNT, 0));
    say("some_blocks", blocks > 0);

    say("profiler", cudaProfilerStart() | cudaProfilerStop());
    cudaStream_t stream;
    cudaEvent_t begun, ended;
    say("stream", cudaStreamCreate(&stream));
    say("event", cudaEventCreate(&begun) | cudaEventCreate(&ended));
    say("record", cudaEventRecord(begun, stream));
    work<<<1, COUNT, SHARED_BYTES, stream>>>(memory, 1);
    say("launch", cudaGetLastError());
    work<<<1, 100000, 0, stream>>>(memory, 1);
    say("too_many_threads", cudaGetLastError());
    say("record_end", cudaEventRecord(ended, stream));
    say("wait", cudaEventSynchronize(ended));
    float ms = -1;
    say("elapsed", cudaEventElapsedTime(&ms, begun, ended));
    say("positive", ms > 0);

    cudaGraph_t graph;
    cudaGraphExec_t made;
    size_t nodes = 0;
    say("capture", cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    work<<<1, COUNT, SHARED_BYTES, stream>>>(memory, 2);
    say("captured", cudaStreamEndCapture(stream, &graph));
    say("nodes", cudaGraphGetNodes(graph, nullptr, &nodes));
    say("node_count", nodes);
    say("instantiate", cudaGraphInstantiate(&made, graph, 0));
    say("graph_launch", cudaGraphLaunch(made, stream));
    say("synchronize", cudaStreamSynchronize(stream));
    say("free", cudaFree(memory));
    say("free_again", cudaFree(memory));
    say("error_name", cudaGetErrorName(cudaErrorInvalidValue)[0]);
    printf("}\n");
}
