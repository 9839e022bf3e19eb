/* shareable BYTES: carries out the commands of its input on physical memory that can be exported.
 * Answers each with a JSON object that begins with the line's number. Handles, descriptors and
 * addresses are numbers. All pieces have BYTES bytes.
 *
 *   create              creates a piece
 *   release HANDLE      releases a handle
 *   export HANDLE       prints a descriptor
 *   close DESCRIPTOR    closes a descriptor
 *   import DESCRIPTOR   prints a handle
 *   map HANDLE          prints an address
 *   unmap ADDRESS       unmaps a piece
 *   take BYTES          allocates linear memory, and frees it on success */
#include "driver.h"
#include <string.h>
#include <unistd.h>

enum { POSIX_FILE_DESCRIPTOR = 1 };

int main(int count, char **arguments) {
    char line[256];
    size_t piece = count == 2 ? strtoull(arguments[1], NULL, 10) : 0;
    if (!piece) {
        fprintf(stderr, "usage: shareable BYTES\n");
        return 2;
    }
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requested_handle_types = POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
    };
    open_context();
    for (int number = 1; fgets(line, sizeof line, stdin); number++) {
        char word[32] = "";
        unsigned long long what = 0, given = 0;
        CUresult code = CUDA_SUCCESS;
        sscanf(line, "%31s %llu", word, &what);
        if (!strcmp(word, "create")) {
            code = cu(cuMemCreate)(&given, piece, &properties, 0);
        } else if (!strcmp(word, "release")) {
            code = cu(cuMemRelease)(what);
        } else if (!strcmp(word, "export")) {
            int descriptor = -1;
            code = cu(cuMemExportToShareableHandle)(&descriptor, what, POSIX_FILE_DESCRIPTOR, 0);
            given = descriptor;
        } else if (!strcmp(word, "close")) {
            code = close(what);
        } else if (!strcmp(word, "import")) {
            code = cu(cuMemImportFromShareableHandle)(&given, (void *)(size_t)what, POSIX_FILE_DESCRIPTOR);
        } else if (!strcmp(word, "map")) {
            CHECK(cu(cuMemAddressReserve)(&given, piece, 0, 0, 0));
            code = cu(cuMemMap)(given, piece, 0, what, 0);
        } else if (!strcmp(word, "unmap")) {
            code = cu(cuMemUnmap)(what, piece);
        } else if (!strcmp(word, "take")) {
            CUdeviceptr address;
            code = cu(cuMemAlloc_v2)(&address, what);
            if (code == CUDA_SUCCESS) CHECK(cu(cuMemFree_v2)(address));
        } else {
            fprintf(stderr, "what is %s?\n", word);
            return 2;
        }
        printf("{\"line\":%d,\"code\":%d,\"given\":%llu}\n", number, code, given);
        fflush(stdout);
    }
    return 0;
}
