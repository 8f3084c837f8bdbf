#include "fhbn/rdma/ibverbs.hpp"

#include <dlfcn.h>

#include <string>

#include "fhbn/errors.hpp"

namespace lamina::fhbn::rdma {

namespace {

constexpr const char* kLibrary = "libibverbs.so.1";

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw ChannelError(std::string(kLibrary) + " has no " + name + ": install rdma-core 32 or newer");
  }
}

// Before Linux 5.12 a process that forks and then writes to a queue would write to a copy, which the NIC does
// not read: then the library has to keep its queues from forks. It cannot if
// another user of the library has already chosen otherwise.
void keep_from_forks(void* library) {
  int (*fork_init)() = nullptr;
  find(library, "ibv_fork_init", fork_init);
  fork_init();
}

Ibverbs load() {
  // Not unloaded: drivers of devices have threads and tables of their own in there.
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    throw ChannelError(std::string(kLibrary) + " cannot be loaded: install rdma-core's libibverbs1 (" +
                       ::dlerror() + ")");
  }
  Ibverbs functions;
  find(library, "ibv_get_device_list", functions.get_device_list);
  find(library, "ibv_free_device_list", functions.free_device_list);
  find(library, "ibv_get_device_name", functions.get_device_name);
  find(library, "ibv_open_device", functions.open_device);
  find(library, "ibv_close_device", functions.close_device);
  find(library, "ibv_query_port", functions.query_port);
  find(library, "_ibv_query_gid_table", functions.query_gid_table);
  find(library, "ibv_alloc_pd", functions.alloc_pd);
  find(library, "ibv_dealloc_pd", functions.dealloc_pd);
  find(library, "ibv_reg_mr", functions.reg_mr);
  find(library, "ibv_dereg_mr", functions.dereg_mr);
  find(library, "ibv_create_cq", functions.create_cq);
  find(library, "ibv_destroy_cq", functions.destroy_cq);
  find(library, "ibv_create_qp", functions.create_qp);
  find(library, "ibv_modify_qp", functions.modify_qp);
  find(library, "ibv_destroy_qp", functions.destroy_qp);
  functions.reg_dmabuf_mr =
      reinterpret_cast<decltype(functions.reg_dmabuf_mr)>(::dlsym(library, "ibv_reg_dmabuf_mr"));
  keep_from_forks(library);
  return functions;
}

}  // namespace

const Ibverbs& ibverbs() {
  static const Ibverbs loaded = load();  // tried again by the next call if it throws
  return loaded;
}

}  // namespace lamina::fhbn::rdma
