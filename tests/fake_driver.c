/* A stand-in for NVIDIA's driver: libnvidia-ml.so.1 and libcuda.so.1 of a machine with up to four
 * unequal GPUs. Environment: FAKE_INIT is what nvmlInit answers (0), FAKE_GPUS how many GPUs there
 * are (3), FAKE_CUDA the newest CUDA it supports (12080), FAKE_CUINIT what cuInit answers (0), and
 * FAKE_LOST is the number of a GPU that is lost, and
 * FAKE_LOST_ERROR what the driver says then (15, that it is lost); FAKE_NAME=1 gives a process a name
 * that is not UTF-8. FAKE_USE names a file, read at each question, with lines "GPU MiB PID": this GPU
 * has so much free memory, and this process, unless it is 0, computes on it. FAKE_MIG=1 cuts GPU 3
 * into two MIG devices, which are GPUs 10 and 11 in that file.
 *
 * In nvidia-smi's order, which is the order of the bus:
 *   0  small, slow, and without power readings
 *   1  big and fast, with two processes that compute, one of which also draws, and one that draws
 *   2  its memory cannot be asked for, and it sits in another PCI domain
 *   3  idle
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, GPU_IS_LOST = 15 };
enum { CUDA_INVALID = 1, CUDA_NOT_INITIALIZED = 3, CUDA_NO_DEVICE = 100 };

static const struct {
    const char *name, *uuid, *bus;
    unsigned long long total, used;
    unsigned watts, busy;
    int speed; /* CUDA's own order is the fastest first */
} gpus[] = {
    {"NVIDIA T400 4GB", "GPU-00000000-aaaa", "00000000:01:00.0", 4ULL << 30, 1ULL << 30, 0, 7, 1},
    {"NVIDIA H200", "GPU-11111111-bbbb", "00000000:3B:00.0", 140ULL << 30, 9ULL << 30, 350, 88, 3},
    {"NVIDIA GH200 480GB", "GPU-22222222-cccc", "00010000:02:00.0", 0, 0, 500, 0, 2},
    {"NVIDIA A100-SXM4-40GB", "GPU-33333333-dddd", "00010000:41:00.0", 40ULL << 30, 0, 400, 0, 2},
};
enum { ALL = 4, MIG = 10 }; /* the number of the first MIG device */

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}
static int count(void) { return number("FAKE_GPUS", 3); }

/* ---- libnvidia-ml ---- */
static int open_ = 0;
int fake_open(void) { return open_; }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int answer = number("FAKE_INIT", OK);
    if (answer == OK) open_++;
    return answer;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); } /* what TensorFlow itself calls */
int nvmlShutdown(void) { open_--; return OK; }
const char *nvmlErrorString(int error) { (void)error; return "a new kind of error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { snprintf(text, n, "570.12.3"); return OK; }
int nvmlSystemGetCudaDriverVersion(int *v) { *v = number("FAKE_CUDA", 12080); return OK; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = count(); return OK; }

/* A handle is the index plus one, as a pointer: never NULL. */
#define I(handle) ((long)(handle) - 1)
#define CARD(handle) gpus[I(handle) < MIG ? I(handle) : 3]

/* What the file FAKE_USE says of a GPU; 0 where it says nothing. */
static int use(void *h, unsigned long long *mib, unsigned *pid) {
    FILE *file = getenv("FAKE_USE") ? fopen(getenv("FAKE_USE"), "r") : NULL;
    long gpu = -1;
    int found = 0;
    while (file && !found && fscanf(file, "%ld %llu %u", &gpu, mib, pid) == 3) found = gpu == I(h);
    if (file) fclose(file);
    return found;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **handle) {
    *handle = (void *)(long)(i + 1);
    return (int)i == number("FAKE_LOST", -1) ? number("FAKE_LOST_ERROR", GPU_IS_LOST) : OK;
}
int nvmlDeviceGetName(void *h, char *text, unsigned n) {
    snprintf(text, n, "%s", CARD(h).name);
    return OK;
}
int nvmlDeviceGetUUID(void *h, char *text, unsigned n) {
    if (I(h) < MIG) snprintf(text, n, "%s", CARD(h).uuid);
    else snprintf(text, n, "MIG-3333-%ld", I(h) - MIG);
    return OK;
}
int nvmlDeviceGetMigMode(void *h, unsigned *current, unsigned *pending) {
    *current = *pending = I(h) == 3 && number("FAKE_MIG", 0);
    return I(h) == 3 ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *n) { (void)h; *n = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned i, void **part) {
    *part = (void *)(long)(MIG + i + 1);
    return I(h) == 3 && i < 2 ? OK : NOT_FOUND;
}
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; };
int nvmlDeviceGetPciInfo_v3(void *h, struct pci *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->text, sizeof pci->text, "%s", CARD(h).bus);
    return OK;
}
#define RESERVED (512ULL << 20) /* the driver's own: "used" in the first form, apart in the second */
static unsigned long long used(void *h) {
    unsigned long long mib;
    unsigned pid;
    return use(h, &mib, &pid) ? CARD(h).total - RESERVED - (mib << 20) : CARD(h).used;
}
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(void *h, struct memory *m) {
    if (!CARD(h).total) return NOT_SUPPORTED;
    m->total = CARD(h).total;
    m->used = used(h) + RESERVED;
    m->free = m->total - m->used;
    return OK;
}
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *h, struct memory_v2 *m) {
    if (!CARD(h).total) return NOT_SUPPORTED;
    m->total = CARD(h).total;
    m->reserved = RESERVED;
    m->used = used(h);
    m->free = m->total - m->used - RESERVED;
    return OK;
}
int nvmlDeviceGetUtilizationRates(void *h, unsigned *rates) {
    rates[0] = CARD(h).busy;
    rates[1] = 1;
    return OK;
}
int nvmlDeviceGetTemperature(void *h, int sensor, unsigned *celsius) {
    (void)sensor;
    *celsius = 40 + (unsigned)I(h);
    return OK;
}
int nvmlDeviceGetPowerUsage(void *h, unsigned *milliwatts) {
    *milliwatts = CARD(h).watts * 1000 / 2;
    return CARD(h).watts ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetEnforcedPowerLimit(void *h, unsigned *milliwatts) {
    *milliwatts = CARD(h).watts * 1000;
    return CARD(h).watts ? OK : NOT_SUPPORTED;
}
struct process { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };
static int processes(unsigned *n, struct process *list, const struct process *all, unsigned have) {
    unsigned room = *n;
    *n = have;
    if (room < have) return TOO_SMALL;
    if (have) memcpy(list, all, have * sizeof *all);
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *h, unsigned *n, struct process *list) {
    static const struct process all[] = {{4242, 8ULL << 30, 0, 0}, {4343, ~0ULL, 0, 0}};
    struct process one = {0, ~0ULL, 0, 0};
    unsigned long long mib;
    if (use(h, &mib, &one.pid)) return processes(n, list, &one, one.pid != 0);
    return processes(n, list, all, I(h) == 1 ? 2 : 0);
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, struct process *list) {
    return nvmlDeviceGetComputeRunningProcesses_v2(h, n, list);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *h, unsigned *n, struct process *list) {
    static const struct process all[] = {{4242, 8ULL << 30, 0, 0}, {777, 1ULL << 20, 0, 0}};
    if (I(h) == 2) return NOT_SUPPORTED;
    return processes(n, list, all, I(h) == 1 ? 2 : 0);
}
int nvmlSystemGetProcessName(unsigned pid, char *text, unsigned n) {
    if (pid != 4242) return NOT_FOUND;
    snprintf(text, n, number("FAKE_NAME", 0) ? "caf\351" : "/usr/bin/python3");
    return OK;
}

/* ---- libcuda ---- */
static int seen = -1, order[ALL];

/* Devices that CUDA shows: by speed or by bus, then what CUDA_VISIBLE_DEVICES leaves (numbers only,
 * up to the first that names no device, as CUDA does). */
int cuInit(unsigned flags) {
    (void)flags;
    int answer = number("FAKE_CUINIT", OK), all[ALL], n = count();
    if (answer != OK) return answer;
    for (int i = 0; i < n; i++) all[i] = i;
    const char *by = getenv("CUDA_DEVICE_ORDER"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!by || strcmp(by, "PCI_BUS_ID"))
        for (int i = 0; i < n; i++)
            for (int j = i + 1; j < n; j++)
                if (gpus[all[j]].speed > gpus[all[i]].speed) {
                    int swap = all[i];
                    all[i] = all[j];
                    all[j] = swap;
                }
    seen = 0;
    if (!visible) {
        for (; seen < n; seen++) order[seen] = all[seen];
    } else {
        for (char *end; *visible && seen < n; visible = *end == ',' ? end + 1 : end) {
            long i = strtol(visible, &end, 10);
            if (end == visible || i < 0 || i >= n) break;
            order[seen++] = all[i];
        }
    }
    return seen ? OK : CUDA_NO_DEVICE;
}
int cuDriverGetVersion(int *version) { *version = number("FAKE_CUDA", 12080); return OK; }
int cuGetErrorString(int error, const char **text) {
    *text = error == CUDA_NO_DEVICE ? "no CUDA-capable device is detected" : "system not yet initialized";
    return OK;
}
int cuDeviceGetCount(int *n) {
    *n = seen;
    return seen < 0 ? CUDA_NOT_INITIALIZED : OK;
}
int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal < seen ? OK : CUDA_INVALID;
}
int cuDeviceGetPCIBusId(char *text, int n, int device) {
    const char *bus = gpus[order[device]].bus; /* CUDA writes the domain in 4 digits, if it fits */
    snprintf(text, n, "%s", bus + (strncmp(bus, "0000", 4) ? 3 : 4));
    return OK;
}
int cuDeviceGetName(char *text, int n, int device) {
    snprintf(text, n, "%s", gpus[order[device]].name);
    return OK;
}

/* What TensorFlow asks on top of that before it lists a GPU. */
int cuGetErrorName(int error, const char **text) { (void)error; *text = "CUDA_ERROR"; return OK; }
int cuDeviceTotalMem_v2(size_t *n, int device) { *n = gpus[order[device]].total; return OK; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 75 ? 8 : attribute == 76 ? 0 : 1; /* 75, 76: compute capability 8.0 */
    return OK;
}
