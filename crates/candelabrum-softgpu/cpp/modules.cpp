// Modules and functions. A "PTX" of bin/nvcc is a text that names a shared object.
#include "modules.h"
#include "contexts.h"
#include "memory.h"
#include "status.h"
#include <dlfcn.h>
#include <link.h>
#include <mutex>

struct Module {
    void *lib;
    bool is_own; // whether NVRTC compiled it
};

API int cuModuleLoadData(void **m, const void *image) {
    if (int e = error_so_far()) return e;
    const char *text = (const char *)image, *mark = "// softgpu kernels: ";
    if (!strncmp(text, CUBIN, strlen(CUBIN))) text += strlen(CUBIN);
    if (strncmp(text, mark, strlen(mark))) {
        say("a module that was not compiled by the stand-in for nvcc");
        return strncmp(text,
                       "\x7f"
                       "ELF",
                       4)
                   ? BAD_PTX
                   : BAD_IMAGE;
    }
    text += strlen(mark);
    std::string path(text, strcspn(text, "\n"));
    // Kernels refer to symbols of this library, which was opened for one library's user only.
    static std::once_flag once;
    std::call_once(once, [] {
        Dl_info info;
        dladdr((void *)&cuModuleLoadData, &info);
        dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    });
    void *lib = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        say("%s", dlerror());
        return BAD_IMAGE;
    }
    *m = new Module{lib, path.find("/nvrtc.") != path.npos};
    return OK;
}
API int cuModuleLoad(void **m, const char *path) {
    FILE *f = fopen(path, "r");
    if (!f) return NO_FILE;
    char text[8192];
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    fclose(f);
    return cuModuleLoadData(m, text);
}
// The shared object stays open, because its kernels may still be under way.
API int cuModuleUnload(void *m) {
    delete (Module *)m;
    return error_so_far();
}
API int cuModuleGetFunction(void **f, void *m, const char *name) {
    if (int e = error_so_far()) return e;
    auto [lib, is_own] = *(Module *)m;
    auto symbol = std::string("softgpu_kernel_") + name;
    auto *kernel = (const softgpu_kernel_t *)dlsym(lib, symbol.c_str());
    if (!kernel) {
        TRACE("no kernel %s", name);
        return NOT_FOUND;
    }
    struct link_map *map = nullptr;
    dlinfo(lib, RTLD_DI_LINKMAP, &map);
    *f = new Function{kernel, name, map->l_addr, is_own};
    return OK;
}
API int cuModuleGetGlobal_v2(devptr *p, size_t *n, void *m, const char *name) {
    void *v = dlsym(((Module *)m)->lib, name);
    Dl_info info;
    const ElfW(Sym) *symbol = nullptr;
    if (!v || !dladdr1(v, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol) return NOT_FOUND;
    adopt((devptr)v, symbol->st_size);
    *p = (devptr)v;
    if (n) *n = symbol->st_size;
    return OK;
}

const int THREADS_ATTRIBUTE = 0, SHARED_ATTRIBUTE = 8; // CU_FUNC_ATTRIBUTE_*
API int cuFuncGetAttribute(int *v, int what, void *f) {
    auto *function = (Function *)f;
    switch (what) {
    case THREADS_ATTRIBUTE: *v = (int)function->kernel->bounds; return OK;
    case SHARED_ATTRIBUTE: *v = (int)function->most_shared; return OK;
    }
    *v = 0;
    return OK;
}
API int cuFuncSetAttribute(void *f, int what, int v) {
    if (what != SHARED_ATTRIBUTE) return OK;
    if (v < 0 || v > (int)MOST_SHARED) return INVALID;
    ((Function *)f)->most_shared = std::max((unsigned)v, SHARED);
    return OK;
}
