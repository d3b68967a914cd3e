// Writes gpu_step_*.pb: the RunMetadata of one step on a GPU, made without one by TensorFlow's own
// code. The times, the graph and the kernels are made up; the form is TensorFlow's: its
// StepStatsCollector notes the operations, its BFC allocator hands out their memory, and its
// ConvertGpuXSpaceToStepStats turns what CUPTI would have seen into the lanes of the GPU.
//
// gpu_step_2.21.pb is written by TensorFlow 2.21.0, and gpu_step_2.18.pb by 2.18.1 (the package
// tensorflow-cpu), whose converter gives kernel times from the profiler's start. For each:
//
//   FLAGS=$(python -c "import tensorflow as tf; print(*tf.sysconfig.get_compile_flags())")
//   LIB=$(python -c "import tensorflow as tf; print(tf.sysconfig.get_lib())")
//   LINK="-L$LIB -l:libtensorflow_cc.so.2 -l:libtensorflow_framework.so.2 -Wl,-rpath,$LIB"
//   g++ -w tests/data/make_gpu_step.cc $FLAGS -DNDEBUG $LINK -o make_gpu_step
//   ./make_gpu_step tests/data/gpu_step_2.21.pb
//
// The card is one, and the process splits it: /GPU:0 and /GPU:1 are shares of "/device:GPU:0".
#include <cstdlib>
#include <fstream>
#include <map>

#include "tensorflow/core/common_runtime/bfc_allocator.h"
#include "tensorflow/core/common_runtime/step_stats_collector.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/profiler/convert/xplane_to_step_stats.h"
#include "tensorflow/core/protobuf/config.pb.h"

using namespace tensorflow;  // NOLINT
const std::string kTask = "/job:localhost/replica:0/task:0/device:";
const int64_t kProfilerStart = 1700000000000000000;  // ns since 1970

// ---- operations and their memory

struct Malloc : tsl::SubAllocator {
  Malloc() : SubAllocator({}, {}) {}
  void* Alloc(size_t alignment, size_t bytes, size_t* received) override {
    *received = bytes;
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  }
  void Free(void* ptr, size_t) override { std::free(ptr); }
  bool SupportsCoalescing() const override { return false; }
  tsl::AllocatorMemoryType GetMemoryType() const override {
    return tsl::AllocatorMemoryType::kDevice;
  }
};

struct Share : DeviceBase {  // of a GPU: what is on the host is pinned
  Share(const std::string& memory) : DeviceBase(Env::Default()) {
    tsl::BFCAllocator::Options options;
    here = new tsl::BFCAllocator(std::make_unique<Malloc>(), 1 << 26, memory, options);
    host = new tsl::BFCAllocator(std::make_unique<Malloc>(), 1 << 26, "gpu_host_bfc", options);
  }
  Allocator* GetAllocator(AllocatorAttributes a) override { return a.on_host() ? host : here; }
  Allocator *here, *host;
};

StepStats stats;
StepStatsCollector collector(&stats);
RunMetadata metadata;
std::map<std::string, Share*> shares;
std::map<std::string, GraphDef*> graphs;
std::map<std::string, Tensor> alive;
struct Run { std::string name; int64_t start, end; std::vector<int64_t> moments; };
std::map<std::string, std::vector<Run>> runs;  // by device, in the order of node_stats

NodeDef* Add(const std::string& device, const std::string& name, const std::string& op,
             std::vector<std::string> inputs) {
  if (!graphs[device]) graphs[device] = metadata.add_partition_graphs();
  NodeDef* node = graphs[device]->add_node();
  node->set_name(name), node->set_op(op), node->set_device(kTask + device);
  for (auto& input : inputs) node->add_input(input);
  return node;
}

void Copy(const std::string& tensor, const std::string& from, const std::string& to, int id) {
  for (std::string op : {"_Send", "_Recv"}) {  // the collector keeps no statistics of these
    NodeDef* node = Add(op == "_Send" ? from : to, tensor + "/_" + std::to_string(id++), op, {});
    if (op == "_Send") node->add_input(tensor);
    (*node->mutable_attr())["tensor_name"].set_s("edge_" + tensor);
    (*node->mutable_attr())["send_device"].set_s(kTask + from);
    (*node->mutable_attr())["recv_device"].set_s(kTask + to);
  }
}

// Runs an operation; times in us from the profiler's start, 1 us of it before its kernel is called.
void Ran(const NodeDef* node, int64_t start, int64_t end, int64_t floats, int64_t scratch = 0,
         bool host = false) {
  std::string device = node->device().substr(kTask.size());
  NodeExecStatsInterface* noted = collector.CreateNodeExecStats(node);
  if (!shares[device]) shares[device] = new Share(device.substr(0, 3) + "_0_bfc");
  OpKernelContext::Params params;
  params.device = shares[device], params.track_allocations = true;
  OpKernelContext context(&params, 1);
  AllocatorAttributes where;
  where.set_on_host(host);
  noted->RecordExecutorStarted(), noted->RecordComputeStarted();
  Run run{node->name(), start, end, {}};
  if (floats) {
    alive[node->name()] = Tensor(context.get_allocator(where), DT_FLOAT, {floats});
    noted->SetOutput(0, &alive[node->name()]);
    run.moments.push_back(start + 1);
  }
  if (scratch) {
    Tensor workspace(context.get_allocator({}), DT_FLOAT, {scratch});
    run.moments.insert(run.moments.end(), {start + 2, end - 1});
  }
  noted->RecordComputeEnded(), noted->SetMemory(&context), noted->RecordExecutorEnded();
  runs[device].push_back(run);
  noted->Done(node->device());
}

void Free(const NodeDef* node, int64_t moment) {
  alive.erase(node->name());
  for (auto& run : runs[node->device().substr(kTask.size())])
    if (run.name == node->name()) run.moments.push_back(moment);
}

void SetTimes() {
  for (auto& device : *stats.mutable_dev_stats())
    for (int i = 0; i < device.node_stats_size(); i++) {
      auto& node = *device.mutable_node_stats(i);
      const Run& run = runs[device.device().substr(kTask.size())][i];
      const int64_t start = kProfilerStart + run.start * 1000, took = (run.end - run.start) * 1000;
      node.set_all_start_nanos(start), node.set_all_start_micros(start / 1000);
      node.set_op_start_rel_nanos(1000), node.set_op_start_rel_micros(1);
      node.set_op_end_rel_nanos(took - 500), node.set_op_end_rel_micros(took / 1000 - 1);
      node.set_all_end_rel_nanos(took), node.set_all_end_rel_micros(took / 1000);
      node.set_scheduled_nanos(start - 1000), node.set_scheduled_micros(start / 1000 - 1);
      node.set_thread_id(1);
      int k = 0;
      for (auto& memory : *node.mutable_memory())
        for (auto& record : *memory.mutable_allocation_records())
          record.set_alloc_micros(kProfilerStart / 1000 + run.moments.at(k++));
      for (auto& output : *node.mutable_output())
        output.mutable_tensor_description()->mutable_allocation_description()->clear_ptr();
    }
}

// ---- what CUPTI would have seen

profiler::XSpace space;
profiler::XPlane* Plane(const std::string& name, int id) {
  for (auto& plane : *space.mutable_planes())
    if (plane.name() == name) return &plane;
  profiler::XPlane* plane = space.add_planes();
  plane->set_name(name), plane->set_id(id);
  return plane;
}

profiler::XStat* Stat(profiler::XPlane* plane, profiler::XEvent* event, const std::string& name) {
  int64_t id = 1;
  while (plane->stat_metadata().count(id) && plane->stat_metadata().at(id).name() != name) id++;
  (*plane->mutable_stat_metadata())[id].set_id(id);
  (*plane->mutable_stat_metadata())[id].set_name(name);
  profiler::XStat* stat = event ? event->add_stats() : plane->add_stats();
  stat->set_metadata_id(id);
  return stat;
}

profiler::XEvent* Event(profiler::XPlane* plane, int64_t line, const std::string& name,
                        int64_t start_ns, int64_t length_ns) {
  int64_t id = plane->event_metadata_size() + 1;
  (*plane->mutable_event_metadata())[id].set_id(id);
  (*plane->mutable_event_metadata())[id].set_name(name);
  profiler::XLine* found = nullptr;
  for (auto& each : *plane->mutable_lines()) if (each.id() == line) found = &each;
  if (!found) found = plane->add_lines(), found->set_id(line);
  profiler::XEvent* event = found->add_events();
  event->set_metadata_id(id), event->set_offset_ps(start_ns * 1000);
  event->set_duration_ps(length_ns * 1000);
  return event;
}

// Something on a stream and its launch; times in ns from the profiler's start.
void OnCard(int stream, const std::string& name, const std::string& op, int64_t launched,
            int64_t start, int64_t length) {
  static int64_t correlation = 0;
  correlation++;
  profiler::XPlane *host = Plane("/host:CPU", 0), *card = Plane("/device:GPU:0", 0);
  bool copy = name.rfind("Memcpy", 0) == 0, set = name == "Memset";
  profiler::XEvent* launch = Event(host, 77, copy ? "cuMemcpyAsync" : "cuLaunchKernel", launched,
                                   3000);
  Stat(host, launch, "device_id")->set_int64_value(0);
  Stat(host, launch, "correlation_id")->set_int64_value(correlation);
  profiler::XEvent* event = Event(card, stream, name, start, length);
  Stat(card, event, "correlation_id")->set_int64_value(correlation);
  if (!op.empty()) Stat(card, event, "tf_op")->set_str_value(op);
  if (!set)
    Stat(card, event, copy ? "memcpy_details" : "kernel_details")
        ->set_str_value(copy ? "kind:x size:4 dest:0 async:1" : "regs:32 grid:8,1,1 block:64,1,1");
}

int main(int, char** argv) {
  StepStats none;  // without a plane of a GPU the converter adds nothing
  profiler::ConvertGpuXSpaceToStepStats(space, &none);
  CHECK_EQ(none.dev_stats_size(), 0);

  Ran(Add("CPU:0", "_arg_x_0_0", "_Arg", {}), 2000, 2002, 0);
  Copy("_arg_x_0_0", "CPU:0", "GPU:0", 1);
  auto* matmul = Add("GPU:0", "layer/MatMul", "MatMul", {"_arg_x_0_0/_2", "_arg_x_0_0/_2"});
  Ran(matmul, 2050, 2062, 250000, 4000);  // 1,000,000 bytes, rounded to 256; 16,000 of scratch
  auto* relu = Add("GPU:0", "layer/Relu", "Relu", {"layer/MatMul"});
  Ran(relu, 2065, 2074, 250001);  // 1,000,004 bytes, in a block 10 % larger, not split
  Free(matmul, 2075);
  auto* shape = Add("GPU:0", "shape", "Shape", {"layer/Relu"});
  Ran(shape, 2076, 2079, 5, 0, true);  // 20 bytes, on the host
  Ran(Add("GPU:0", "flat", "Reshape", {"layer/Relu", "shape"}), 2082, 2085, 0);
  Ran(Add("GPU:0", "loss", "Sum", {"flat"}), 2090, 2099, 1);
  Copy("loss", "GPU:0", "CPU:0", 3);
  Ran(Add("CPU:0", "twice", "AddV2", {"loss/_4", "loss/_4"}), 6300, 6303, 0);
  auto* root = Add("GPU:1", "while/Sqrt", "Sqrt", {});
  for (int i = 0; i < 3; i++) Ran(root, 2100 + 20 * i, 2110 + 20 * i, 0);
  collector.Finalize();
  SetTimes();

  Stat(Plane("Task Environment", 9), nullptr, "profile_start_time")
      ->set_uint64_value(kProfilerStart);
  OnCard(14, "MemcpyH2D", "", 2005000, 2010000, 35200);
  OnCard(14, "nccl", "", 2030000, 2046000, 2000);  // without an operation
  OnCard(14, "Memset", "layer/MatMul:MatMul", 2051900, 2055000, 900);
  OnCard(14, "sgemm", "layer/MatMul:MatMul", 2051900, 2060000, 3000700);
  OnCard(14, "splitKreduce", "layer/MatMul:MatMul", 2056000, 5070000, 500000);
  OnCard(14, "relu", "layer/Relu:Relu", 2069000, 5571000, 100000);
  OnCard(15, "reduce_1", "loss:Sum", 2094000, 5680000, 400000);  // beside reduce_2
  OnCard(16, "reduce_2", "loss:Sum", 2096000, 5880000, 300000);
  OnCard(15, "MemcpyD2D", "loss:Sum", 2097000, 6185000, 4000);
  OnCard(15, "MemcpyD2H", "", 6190000, 6195000, 2000);
  for (int i = 0; i < 3; i++)
    OnCard(20, "sqrt", "while/Sqrt:Sqrt", 2104000 + 20000 * i, 3000000 + 1000000 * i, 10000);
  auto* wait = Event(Plane("/host:CPU", 0), 77, "cuStreamSynchronize", 6200000, 90000);
  Stat(Plane("/host:CPU", 0), wait, "device_id")->set_int64_value(0);
  profiler::ConvertGpuXSpaceToStepStats(space, &stats);
  *metadata.mutable_step_stats() = stats;
  std::ofstream file(argv[1], std::ios::binary);
  metadata.SerializeToOstream(&file);
}
