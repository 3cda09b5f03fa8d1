// SPDX-License-Identifier: Apache-2.0
//
// A profiler beside those of torch: Kineto tells it when a profile begins and ends and which
// operator each thread runs, and adds its slices to the same trace. Python compiles this file
// against the headers of the installed torch (ncclscope/_kineto.py), because Kineto's classes
// differ between releases.
//
// The slices come from Python: when Kineto collects, this file calls `slices`, which calls
// `ncclscope_kineto_lane` and `ncclscope_kineto_slice` for all of them.

#include <time.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <kineto/libkineto.h>
#include <kineto/output_base.h>

namespace {

// The plugin's functions, and Python's.
struct Hooks {
  int (*is_started)();
  int (*mark)(const char*);
  int (*start)(const char*);
  int (*stop)();
  void (*push)(uint64_t);
  void (*pop)();
  // Both times in ns since 1970.
  void (*slices)(int64_t start, int64_t end);
  // The first communicator does not start a recording.
  int is_off_at_first;

  // The same as `Library.begin` in _plugin.py.
  bool begin() const {
    if (is_started() != 0 || (mark("torch.profiler") != 0 && is_off_at_first == 0)) {
      return false;
    }
    return start("") == 0;
  }
};

// Never freed: a thread may still read it.
std::atomic<const Hooks*> hooks{nullptr};

int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec;
}

const std::string kName = "ncclscope";

// A track of the trace, as Kineto shows it.
struct Lane {
  int64_t id;
  std::string name;
};

// The data that Python passes for one profile.
struct Told {
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer =
      std::make_unique<libkineto::CpuTraceBuffer>();
  std::vector<Lane> lanes;
  int64_t process = 0;
  int64_t sort_index = 0;
  std::string name;
  std::string label;
};

// The profile that Python fills, on the thread that calls `slices`.
thread_local Told* told = nullptr;
// Kineto's unit of time in ns; older releases use microseconds.
thread_local int64_t unit = 1;

class Session : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    const Hooks* hook = hooks.load();
    begin_ = now();
    end_ = 0;
    // A recording that is already on continues, and is not stopped at the end.
    is_ours_ = hook != nullptr && hook->begin();
  }

  void stop() override {
    const Hooks* hook = hooks.load();
    end_ = now();
    if (is_ours_ && hook != nullptr) {
      hook->stop();
    }
    is_ours_ = false;
  }

  std::vector<std::string> errors() override {
    return {};
  }

  void processTrace(libkineto::ActivityLogger&) override {}

  void processTrace(
      libkineto::ActivityLogger& logger,
      libkineto::getLinkedActivityCallback,
      int64_t start,
      int64_t) override {
    const Hooks* hook = hooks.load();
    if (hook == nullptr || begin_ == 0) {
      return;
    }
    told_ = std::make_unique<Told>();
    told = told_.get();
    // Microseconds since 1970 have 16 digits.
    unit = start > 100000000000000000 ? 1 : 1000;
    const int64_t end = end_ != 0 ? end_ : now();
    told->buffer->span = libkineto::TraceSpan(begin_ / unit, end / unit, "NCCL");
    hook->slices(begin_, end);
    told = nullptr;
    for (const auto& activity : told_->buffer->activities) {
      logger.handleGenericActivity(*activity);
    }
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    if (!told_ || told_->lanes.empty()) {
      return nullptr;
    }
    auto info = std::make_unique<libkineto::DeviceInfo>(
        libkineto::DeviceInfo{0, 0, told_->name, told_->label});
    info->id = told_->process;
    info->sortIndex = told_->sort_index;
    return info;
  }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> lanes;
    if (told_) {
      for (const Lane& lane : told_->lanes) {
        // Set by name: the order of the fields differs between releases.
        libkineto::ResourceInfo info{0, 0, 0, lane.name};
        info.id = lane.id;
        info.sortIndex = lane.id;
        info.deviceId = told_->process;
        lanes.push_back(info);
      }
    }
    return lanes;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return told_ ? std::move(told_->buffer) : nullptr;
  }

  void pushCorrelationId(uint64_t id) override {
    push(id);
  }

  void popCorrelationId() override {
    pop();
  }

  // Annotations of the user, which nest with operators.
  void pushUserCorrelationId(uint64_t id) override {
    push(id);
  }

  void popUserCorrelationId() override {
    pop();
  }

 private:
  static void push(uint64_t id) {
    if (const Hooks* hook = hooks.load(std::memory_order_acquire)) {
      hook->push(id);
    }
  }

  static void pop() {
    if (const Hooks* hook = hooks.load(std::memory_order_acquire)) {
      hook->pop();
    }
  }

  int64_t begin_ = 0;
  int64_t end_ = 0;
  bool is_ours_ = false;
  std::unique_ptr<Told> told_;
};

class Profiler : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    return kName;
  }

  const std::set<libkineto::ActivityType>& availableActivities() const override {
    static const std::set<libkineto::ActivityType> kinds{
        libkineto::ActivityType::COLLECTIVE_COMM};
    return kinds;
  }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<libkineto::ActivityType>&,
      const libkineto::Config&) override {
    return std::make_unique<Session>();
  }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t,
      int64_t,
      const std::set<libkineto::ActivityType>&,
      const libkineto::Config&) override {
    return std::make_unique<Session>();
  }
};

} // namespace

extern "C" {

// Registers the profiler the first time and copies `given`. NULL disables the profiler.
void ncclscope_kineto_attach(const Hooks* given) {
  hooks.store(given == nullptr ? nullptr : new Hooks(*given));
  static std::once_flag once;
  if (given != nullptr) {
    std::call_once(once, [] {
      libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
    });
  }
}

// Sets the process of the tracks that follow.
void ncclscope_kineto_process(
    int64_t id,
    int64_t sort_index,
    const char* name,
    const char* label) {
  if (told != nullptr) {
    told->process = id;
    told->sort_index = sort_index;
    told->name = name;
    told->label = label;
  }
}

// Adds a track; its id is not 0.
void ncclscope_kineto_lane(int64_t id, const char* name) {
  if (told != nullptr) {
    told->lanes.push_back({id, name});
  }
}

// Adds a slice to a track; times are in ns since 1970. `args` alternates names and values, the
// values in JSON, and ends with NULL.
void ncclscope_kineto_slice(
    int64_t lane,
    int64_t start,
    int64_t end,
    const char* name,
    const char* const* args) {
  if (told == nullptr || !told->buffer) {
    return;
  }
  libkineto::CpuTraceBuffer& buffer = *told->buffer;
  buffer.emplace_activity(buffer.span, libkineto::ActivityType::COLLECTIVE_COMM, name);
  auto& activity = libkineto::CpuTraceBuffer::toRef(buffer.activities.back());
  activity.startTime = start / unit;
  activity.endTime = end / unit;
  activity.device = static_cast<int32_t>(told->process);
  activity.resource = lane;
  activity.threadId = static_cast<int32_t>(lane);
  for (; args[0] != nullptr && args[1] != nullptr; args += 2) {
    activity.addMetadata(args[0], std::string(args[1]));
  }
}

} // extern "C"
