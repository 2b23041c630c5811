"""The simulated CUDA device behind torch: real CUDA tensors, real autograd, no GPU."""


def test_tensors_are_cuda_tensors(run_on_device):
    run_on_device("""
        x = torch.randn(3, 4).cuda()
        assert x.is_cuda and x.device == torch.device("cuda", 0) and str(x.device) == "cuda:0"
        y = torch.ones(3, 4, device="cuda")
        z = x + y * 2
        assert z.is_cuda and torch.equal(z.cpu(), x.cpu() + 2)
        assert x[:, ::2].contiguous().is_cuda and x.t().reshape(-1).shape == (12,)
        out = torch.empty(0, device="cuda")
        torch.add(x, 1, out=out)
        assert out.shape == (3, 4)
        x[1, 2] = 7
        assert x[1, 2].item() == 7 and "cuda:0" in repr(x)
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        assert torch.cuda.get_device_capability() == (9, 0)
    """)


def test_modules_train(run_on_device):
    run_on_device("""
        import copy
        import torch.nn as nn
        torch.manual_seed(0)
        make = lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, groups=4), nn.BatchNorm2d(8), nn.GELU(), nn.ConvTranspose2d(8, 8, 3, groups=2),
            nn.MaxPool2d(2), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(8 * 16, 5), nn.Softmax(1))
        a = make(); b = copy.deepcopy(a).cuda()
        x = torch.randn(3, 4, 8, 8)
        xa, xb = x.clone().requires_grad_(), x.cuda().requires_grad_()
        ya, yb = a(xa), b(xb)
        ya.square().sum().backward(); yb.square().sum().backward()
        assert torch.allclose(ya, yb.cpu(), atol=1e-6)
        assert torch.allclose(xa.grad, xb.grad.cpu(), atol=1e-5)
        for p, q in zip(a.parameters(), b.parameters()):
            assert q.grad.is_cuda and torch.allclose(p.grad, q.grad.cpu(), atol=1e-5)
        assert torch.allclose(a[1].running_var, b[1].running_var.cpu()) and b[1].num_batches_tracked.item() == 1
        assert device.ops()["aten::convolution"] == 2
    """)


def test_mixing_devices_is_an_error(run_on_device):
    run_on_device("""
        try:
            torch.ones(3).cuda() + torch.ones(3)
        except RuntimeError as error:
            assert "same device" in str(error), error
        else:
            raise AssertionError("mixed devices were accepted")
        torch.ones(3).cuda() + torch.tensor(2.0)  # a scalar on the host is fine, as it is in torch
    """)


def test_unwritten_elements_are_counted(run_on_device):
    run_on_device("""
        x = torch.empty(4, 5, device="cuda")
        assert device.uninitialised(x) == (20, 0)
        assert torch.isnan(x.cpu()).all()          # poisoned
        x[0] = 1
        assert device.uninitialised(x) == (15, 5)
        assert device.uninitialised(x[:, :2])[0] == 6
        assert device.uninitialised(torch.zeros(7, device="cuda")) == (0, None)
    """)


def test_streams_are_known(run_on_device):
    run_on_device("""
        side = torch.cuda.Stream()
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        with torch.cuda.stream(side):
            assert torch.cuda.current_stream() == side
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
    """)


def test_devices_are_known(run_on_device):
    run_on_device("""
        def refused(error, function, argument):
            try:
                function(argument)
            except error:
                return
            raise AssertionError((function, argument))

        for name in ("current_stream", "default_stream", "synchronize", "set_device", "get_device_name",
                     "get_device_capability", "get_device_properties"):
            function = getattr(torch.cuda, name)
            for device in (0, "cuda", "cuda:0", torch.device("cuda", 0)):
                function(device)
            for none, error in (("cpu", ValueError), (1, RuntimeError)):
                refused(error, function, none)
        raw = torch._C._cuda_getCurrentRawStream
        assert raw(0) == torch.cuda.current_stream().cuda_stream
        with torch.cuda.stream(torch.cuda.Stream()):
            assert raw(0) == torch.cuda.current_stream().cuda_stream != 0
        refused(RuntimeError, raw, torch.ones(1).cuda())
        with torch.cuda.device(0):
            torch.cuda.current_stream()
    """)


def test_install_after_torch_says_what_to_do(run_on_device):
    said = run_on_device("import torch\nfrom crucible.sim import device\ndevice.install()\n", install=False, expect=1)
    assert "before torch is imported" in said
