package explain
import ("testing";"os";"strings";"fmt")
func TestTry(t *testing.T){
 b,_:=os.ReadFile("/tmp/cases.txt")
 for _,l:=range strings.Split(strings.TrimSpace(string(b)),"\n---\n"){
  fmt.Println("==================", l)
  a,err:=Line(l)
  if err!=nil {fmt.Println("ERROR",err);continue}
  a.WriteText(os.Stdout)
 }
}
