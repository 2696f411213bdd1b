// libnvrtc: writes the source to a folder and calls bin/nvcc.
#include "modules.h"
#include <algorithm>
#include <filesystem>
#include <regex>
#include <unistd.h>
#include <vector>

enum { SUCCEEDED = 0, INVALID_OPTION = 5, FAILED = 6 };
struct Program {
    std::string source, name, ptx, cubin, log;
    std::vector<std::string> headers, names;
};
API int nvrtcVersion(int *a, int *b) {
    *a = 13;
    *b = 0;
    return 0;
}
API int nvrtcCreateProgram(void **p, const char *src, const char *name, int n,
                           const char *const *texts, const char *const *names) {
    auto *q = new Program;
    q->source = src;
    q->name = name ? name : "default_program";
    for (int i = 0; i < n; i++) {
        q->names.push_back(names[i]);
        q->headers.push_back(texts[i]);
    }
    *p = q;
    return 0;
}
API int nvrtcDestroyProgram(void **p) {
    delete (Program *)*p;
    *p = nullptr;
    return 0;
}
static void write_file(const std::string &path, const std::string &text) {
    FILE *f = fopen(path.c_str(), "w");
    if (f) {
        fwrite(text.data(), 1, text.size(), f);
        fclose(f);
    }
}
static std::string read_file(const std::string &path) {
    std::string text;
    if (FILE *f = fopen(path.c_str(), "r")) {
        char part[4096];
        size_t n;
        while ((n = fread(part, 1, sizeof part, f))) text.append(part, n);
        fclose(f);
    }
    return text;
}
// The architectures that it knows, oldest first: those of NVRTC 13.0, up to SOFTGPU_NVRTC_NEWEST.
static std::vector<int> architectures() {
    std::vector<int> known;
    for (int one : {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121})
        if (one <= env("SOFTGPU_NVRTC_NEWEST", 121)) known.push_back(one);
    return known;
}
API int nvrtcGetNumSupportedArchs(int *n) {
    *n = (int)architectures().size();
    return 0;
}
API int nvrtcGetSupportedArchs(int *out) {
    auto known = architectures();
    std::copy(known.begin(), known.end(), out);
    return 0;
}
// Writes the source and its headers to a new folder and compiles them there.
static bool compile(Program &p, const std::vector<std::string> &flags) {
    char folder[] = "/tmp/softgpu-nvrtc-XXXXXX";
    if (!mkdtemp(folder)) return false;
    std::string dir = folder;
    write_file(dir + "/nvrtc.cu", p.source);
    for (size_t i = 0; i < p.names.size(); i++) write_file(dir + "/" + p.names[i], p.headers[i]);
    std::string command = "'" + home() + "/bin/nvcc' --ptx --output-directory '" + dir + "'";
    for (auto &f : flags) command += " '" + f + "'";
    command += " '" + dir + "/nvrtc.cu' 2>'" + dir + "/log'";
    int status = system(command.c_str());
    p.log = read_file(dir + "/log");
    p.ptx = read_file(dir + "/nvrtc.ptx");
    // Without a cache the shared object lies in this folder, too.
    std::error_code ignored;
    if (getenv("SOFTGPU_CACHE")) std::filesystem::remove_all(dir, ignored);
    return status == 0 && !p.ptx.empty();
}
API int nvrtcCompileProgram(void *pv, int n, const char *const *options) {
    auto *p = (Program *)pv;
    TRACE("nvrtc compiles %s", p->name.c_str());
    std::vector<std::string> flags;
    bool has_path = false, for_one = false;
    for (int i = 0; i < n; i++) {
        std::string o = options[i];
        static const std::regex architecture("--gpu-architecture=(sm|compute)_([0-9]+)");
        std::smatch match;
        if (std::regex_match(o, match, architecture)) {
            auto known = architectures();
            if (std::find(known.begin(), known.end(), stoi(match[2])) == known.end()) {
                p->log = "nvrtc: error: invalid value for --gpu-architecture (-arch)";
                return INVALID_OPTION;
            }
            for_one = match[1] == "sm";
        }
        if (o.rfind("--include-path=", 0) == 0) o = "-I" + o.substr(15);
        if (o.rfind("--define-macro=", 0) == 0) o = "-D" + o.substr(15);
        if (o.rfind("-I", 0) == 0) has_path = true;
        if (o.rfind("-I", 0) == 0 || o.rfind("-D", 0) == 0) flags.push_back(o);
    }
    // NVRTC has none of the host's headers: what a GPU's machine would not find is not found here.
    static const std::regex include("(^|\n)[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"]+)[>\"]");
    for (std::sregex_iterator it(p->source.begin(), p->source.end(), include), end;
         it != end && !has_path; ++it)
        if (std::find(p->names.begin(), p->names.end(), (*it)[2].str()) == p->names.end()) {
            p->log = p->name + ": catastrophic error: cannot open source file \"" + (*it)[2].str() +
                     "\" (NVRTC has no include path)";
            return FAILED;
        }
    if (!compile(*p, flags)) return FAILED;
    if (for_one) p->cubin = CUBIN + p->ptx;
    return SUCCEEDED;
}
API int nvrtcGetPTXSize(void *p, size_t *n) {
    *n = ((Program *)p)->ptx.size() + 1;
    return 0;
}
API int nvrtcGetPTX(void *p, char *out) {
    auto &t = ((Program *)p)->ptx;
    memcpy(out, t.c_str(), t.size() + 1);
    return 0;
}
API int nvrtcGetCUBINSize(void *p, size_t *n) {
    *n = ((Program *)p)->cubin.size();
    return 0;
}
API int nvrtcGetCUBIN(void *p, char *out) {
    auto &bytes = ((Program *)p)->cubin;
    memcpy(out, bytes.data(), bytes.size());
    return 0;
}
API int nvrtcGetProgramLogSize(void *p, size_t *n) {
    *n = ((Program *)p)->log.size() + 1;
    return 0;
}
API int nvrtcGetProgramLog(void *p, char *out) {
    auto &t = ((Program *)p)->log;
    memcpy(out, t.c_str(), t.size() + 1);
    return 0;
}
