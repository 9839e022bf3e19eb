/* ipc: carries out the commands of its input on memory that processes share. Answers each with a
 * JSON object that begins with the line's number.
 *
 *   allocate BYTES  allocates and keeps memory
 *   give_back       frees the last allocation
 *   export          prints a handle of the last allocation
 *   open HANDLE     opens memory of another process
 *   close           closes the memory opened last
 *   free            frees the memory opened last, which is an error
 *   write VALUE     writes to the memory opened or, if none is open, allocated last
 *   read            reads that memory */
#include "driver.h"
#include <string.h>

enum { MAX_ALLOCATIONS = 64, LAZY_PEER_ACCESS = 1 };

int main(void) {
    CUdeviceptr allocated[MAX_ALLOCATIONS], opened = 0;
    int count = 0;
    char line[256];
    open_context();
    CUstream stream = new_stream();
    for (int number = 1; fgets(line, sizeof line, stdin); number++) {
        char word[32] = "", argument[160] = "", said[160] = "";
        CUresult code = CUDA_SUCCESS;
        sscanf(line, "%31s %159s", word, argument);
        CUdeviceptr at = opened ? opened : count ? allocated[count - 1] : 0;
        if (!strcmp(word, "allocate")) {
            if (count == MAX_ALLOCATIONS) return 2;
            code = cu(cuMemAlloc_v2)(&allocated[count], strtoull(argument, NULL, 10));
            count += code == CUDA_SUCCESS;
        } else if (!strcmp(word, "give_back")) {
            if (!count) return 2;
            code = cu(cuMemFree_v2)(allocated[--count]);
        } else if (!strcmp(word, "export")) {
            CUipcMemHandle handle;
            if (!count) return 2;
            code = cu(cuIpcGetMemHandle)(&handle, allocated[count - 1]);
            for (size_t i = 0; i < sizeof handle; i++) sprintf(said + 2 * i, "%02x", handle.bytes[i]);
        } else if (!strcmp(word, "open")) {
            CUipcMemHandle handle = {{0}};
            for (size_t i = 0; i < sizeof handle; i++) sscanf(argument + 2 * i, "%2hhx", &handle.bytes[i]);
            code = cu(cuIpcOpenMemHandle_v2)(&opened, handle, LAZY_PEER_ACCESS);
        } else if (!strcmp(word, "close")) {
            code = cu(cuIpcCloseMemHandle)(opened);
        } else if (!strcmp(word, "free")) {
            code = cu(cuMemFree_v2)(opened);
        } else if (!strcmp(word, "write")) {
            unsigned value = strtoul(argument, NULL, 10);
            code = cu(cuMemcpyHtoDAsync_v2)(at, &value, sizeof value, stream);
            CHECK(cu(cuStreamSynchronize)(stream));
        } else if (!strcmp(word, "read")) {
            unsigned value = 0;
            code = cu(cuMemcpyDtoH_v2)(&value, at, sizeof value);
            sprintf(said, "%u", value);
        } else {
            fprintf(stderr, "what is %s?\n", word);
            return 2;
        }
        printf("{\"line\":%d,\"code\":%d,\"said\":\"%s\"}\n", number, code, said);
        fflush(stdout);
    }
    return 0;
}
