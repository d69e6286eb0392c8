// Tells torch that there is one CUDA device, which does nothing: tensors without numbers
// (FakeTensorMode) then pass forward and backward as on a GPU, and what mixes devices is refused.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace c10::impl {

struct NoDevice : DeviceGuardImplInterface {
  static Device only() { return Device(DeviceType::CUDA, 0); }
  static Stream queue() { return Stream(Stream::DEFAULT, only()); }

  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return only(); }
  Device getDevice() const override { return only(); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return queue(); }
  Stream getDefaultStream(Device) const override { return queue(); }
  Stream exchangeStream(Stream) const override { return queue(); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};

C10_REGISTER_GUARD_IMPL(CUDA, NoDevice)

}  // namespace c10::impl

namespace at {

struct NoHooks : CUDAHooksInterface {
  explicit NoHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isAvailable() const override { return true; }
  bool isBuilt() const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
};

// torch looks it up by the name that its own hooks have.
using CUDAHooks = NoHooks;
REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at
