import sys, json, tempfile, random, time
from pathlib import Path
from benchmarks.lab.memory.configurations import MODELS, Configuration
from benchmarks.lab.memory.lengths import CASES, distributions
from shoestring.base.settings import Settings
from shoestring.planning.trace import Tracer
from shoestring.planning.candidates import UNTRACED
from shoestring.planning.estimate.requests import requests, accumulate_in_place
from shoestring.planning.estimate.lengths import VaryingRequests
from shoestring.planning.estimate.replay import replay_unlimited
from shoestring.hardware.targets import find
d=find("t4").device
for m in sys.argv[1:]:
    opts=CASES[m]
    c=Configuration(kind="l",model=m,options=opts,settings=Settings(micro_batch=MODELS[m][0],precision="fp16",checkpointing="no"))
    with tempfile.TemporaryDirectory() as f:
        l=c.load(Path(f),64)
        with Tracer(l) as t:
            s=c.settings.replace(**UNTRACED)
            n=opts["seq_len"]; sh=round(n*.625)
            a,b=(requests(accumulate_in_place(t.trace(s,accumulate=2,device=d,options={"seq_len":x})),d) for x in (n,sh))
    v=VaryingRequests(a,b,sh/n)
    for name,dl in list(distributions(None).items())[::3]:
        draw=random.Random(name); mb=MODELS[m][0]
        ups=[]
        for u in range(10):
            sample=sorted((min(1,dl(draw)) for _ in range(8*mb)),reverse=True)
            ups.append([max(8/n,x) for x in sample[::mb]])
        top=max(map(max,ups)); ups=[[x/top for x in u] for u in ups]
        res=[]
        for label,uu,kind in (("engine",ups,"segments"),("warm",[[1.0]*len(ups[0])]+ups,"segments"),("warm1",[[1.0]+[min(ups[0])]*(len(ups[0])-1)]+ups,"segments"),("ascending",sorted(ups,key=max),"segments"),("8",[[-(-x*n//64)*64/n for x in u] for u in ups],"segments"),("expand",ups,"expandable"),("expand asc",sorted(ups,key=max),"expandable")):
            t0=time.time(); q=list(v.of(uu)); r=replay_unlimited(q,kind)
            res.append(f"{label} {r.reserved/r.live.total():.3f} ({r.reserved/2**20:.0f})")
        print(m,name,len(q),round(time.time()-t0,1)," | ".join(res),flush=True)
